"""Each dist builds to a wheel that installs and works with pip alone, into an empty environment."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tests.conftest import Tpux

pytestmark = [pytest.mark.system, pytest.mark.timeout(400)]
ROOT = Path(__file__).parent.parent
DISTS = sorted(path.parent for path in [ROOT / "core/pyproject.toml", *ROOT.glob("plugins/*/pyproject.toml")])


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    """The wheel of each dist."""
    directory = tmp_path_factory.mktemp("wheels")
    build = [Path(sys.executable).with_name("uv"), "build", "--wheel", "--quiet", "--out-dir", directory]
    for dist in DISTS:
        subprocess.run([*build, "--build-constraint", ROOT / "constraints.txt", dist], check=True, timeout=300)
    return directory


def test_every_dist_builds_to_one_wheel(wheels):
    names = [wheel.name.split("-")[0] for wheel in wheels.glob("*.whl")]
    special = {"core": "tpux_core", "all": "tpux"}
    expected = [special.get(path.name, f"tpux_plugin_{path.name.replace('-', '_')}") for path in DISTS]
    assert sorted(names) == sorted(expected)


@pytest.fixture(scope="module")
def installed(wheels, tmp_path_factory):
    """An environment into which pip has installed core and the plugin local."""
    environment = tmp_path_factory.mktemp("environment") / "venv"
    venv.create(environment, with_pip=True)
    chosen = [next(wheels.glob("tpux_core-*")), next(wheels.glob("tpux_plugin_local-*"))]
    pip = [environment / "bin/python", "-m", "pip", "install", "--quiet", "--constraint", ROOT / "constraints.txt"]
    subprocess.run([*pip, *chosen], check=True, timeout=300)
    return environment


def test_core_and_local_work_alone(installed, tmp_path):
    env = {**os.environ, "TPUX_HOME": str(tmp_path / "home")}
    tpux = installed / "bin/tpux"
    shown = subprocess.run([tpux, "plugins", "list", "--json"], env=env, capture_output=True, check=True, timeout=60)
    assert [(row["name"], row["status"]) for row in json.loads(shown.stdout)] == [("local", "ok")]
    (tmp_path / "job.yaml").write_text("command: {cmd: echo hello}\n")
    done = subprocess.run([tpux, "run", tmp_path / "job.yaml"], env=env, capture_output=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, b"[0] hello\n"), done.stderr


def test_core_alone_says_what_to_install(wheels, tmp_path):
    environment = tmp_path / "venv"
    venv.create(environment)
    uv = [Path(sys.executable).with_name("uv"), "pip", "install", "--quiet", "--python", environment / "bin/python"]
    core = next(wheels.glob("tpux_core-*"))
    subprocess.run([*uv, "--constraint", ROOT / "constraints.txt", core], check=True, timeout=300)
    (tmp_path / "job.yaml").write_text("command: {cmd: echo hello}\n")
    env = {**os.environ, "TPUX_HOME": str(tmp_path / "home")}
    for command, code, message in (
        (["plugins", "list"], 0, "no plugins are installed; start with: pip install tpux-plugin-local"),
        (["config", "check", "job.yaml"], 2, "pip install tpux-plugin-local"),
        (["run", "job.yaml"], 2, "no plugin 'local' is installed"),
        (["history"], 2, "pip install tpux-plugin-history"),
    ):
        done = subprocess.run(
            [environment / "bin/tpux", *command], env=env, cwd=tmp_path, capture_output=True, text=True, timeout=60
        )
        assert (done.returncode, message in done.stderr) == (code, True), (command, done.stderr)


def test_what_the_readme_names_as_the_command_is_complete(wheels, tmp_path):
    """Its second line of pip: the dists that `tpux` requires, and no plugin that a job selects."""
    [chosen] = re.findall(r"`\./core \./plugins/\{(\S+)\}`", (ROOT / "README.md").read_text())
    names = ["tpux_core", *("tpux" if name == "all" else f"tpux_plugin_{name}" for name in chosen.split(","))]
    environment = tmp_path / "venv"
    venv.create(environment)
    uv = [Path(sys.executable).with_name("uv"), "pip"]
    python = ["--quiet", "--python", environment / "bin/python"]
    chosen_wheels = [next(wheels.glob(f"{name}-[0-9]*")) for name in names]
    install = [*uv, "install", *python, "--constraint", ROOT / "constraints.txt", *chosen_wheels]
    subprocess.run(install, check=True, timeout=300)
    subprocess.run([*uv, "check", *python], check=True, timeout=60)
    env = {**os.environ, "TPUX_HOME": str(tmp_path / "home")}
    shown = subprocess.run([environment / "bin/tpux", "--help"], env=env, capture_output=True, text=True, timeout=60)
    assert {"exec", "cp", "diagnose", "solve", "history", "run"} <= set(shown.stdout.split())


def test_a_second_installation_takes_the_jobs_over_only_when_the_user_says_so(tpux, installed, wheels):
    """And from then on each of its upgrades is used, if it works, and no job notices."""
    tpux.env["TPUX_CLOCK_RATE"] = "20"
    metadata = next(installed.glob("lib/*/site-packages/tpux_core-*.dist-info/METADATA"))
    metadata.write_text(metadata.read_text().replace("\nVersion: 0.1.0\n", "\nVersion: 0.1.7\n"))
    command = Tpux(tpux.home, tpux.work, tpux.env, installed / "bin/python")
    job = tpux.create("command: {cmd: 'echo up; until [ -e go ]; do sleep 0.1; done'}\n")
    tpux.until(lambda: tpux.output_so_far(job) == b"up\n" and tpux.supervisor())
    pid = tpux.supervisor()

    warned = command("list").stderr
    assert f"warning: this is tpux 0.1.7 of {installed}, but jobs run with the supervisor's tpux 0.1.0 of" in warned
    assert str(sys.prefix) in warned
    assert "warning" not in command("list").stderr, "once"
    other = command.create("command: {cmd: 'true'}\n")
    command("wait", other)
    assert command.supervisor() == pid

    command("supervisor", "stop")
    command("supervisor", "start")
    tpux.until(lambda: command.json("supervisor", "status")["installation"])
    status = command.json("supervisor", "status")
    assert (status["installation"]["version"], status["installation"]["prefix"]) == ("0.1.7", str(installed))
    assert status["pid"] != pid
    assert "warning: this is tpux 0.1.0 of" in tpux("list").stderr
    tpux.until(lambda: tpux.show(job)["why"] == "attempt 1")

    uv = [Path(sys.executable).with_name("uv"), "pip"]
    python = ["--quiet", "--python", installed / "bin/python"]
    subprocess.run([*uv, "uninstall", *python, "tpux-plugin-local"], check=True, timeout=100)
    tpux.until(lambda: command.json("supervisor", "status")["problem"], "for the check of the installation to fail")
    assert "no plugin 'local' is installed" in command.json("supervisor", "status")["problem"]
    chosen = [next(wheels.glob("tpux_core-*")), next(wheels.glob("tpux_plugin_local-*"))]
    subprocess.run([*uv, "install", *python, "--offline", "--reinstall", "--no-deps", *chosen], check=True, timeout=100)
    version = {"version": "0.1.0", "prefix": str(installed)}
    tpux.until(lambda: version.items() <= (command.json("supervisor", "status")["installation"] or {}).items())
    assert command.supervisor() == status["pid"], "the process has replaced itself"
    (tpux.machines(job) / "worker-0/go").touch()
    command("wait", job)
    assert len(tpux.events(job, "attempt-started")) == 1
    assert tpux.output(job) == b"up\n"
