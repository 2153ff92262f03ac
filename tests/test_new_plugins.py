"""`tpux plugins new`: what it writes for each kind is built, installed into an empty environment, run and tested."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.tiers import representative
from tpux_testing.new_plugin import KINDS

ROOT = Path(__file__).parent.parent
BIN = Path(sys.executable).parent
SHOWN = {
    "module": "[0] good morning",
    "environment": "[0] priority 19",
    "allocator": "[1] this is bee",
    "transport": "[0] this is ant",
    "detector": "OSError: [Errno 28] No space left on device",
    "solver": "[0] no lock",
    "rule": "[0] the second attempt succeeds",
    "listener": "[0] the end of this job is a line of tpux-ends",
    "command": "no jobs",
}
"""What the last of the commands shows that `tpux plugins new` prints."""

EXAMPLES = {
    "tpux-plugin-move-on": "[0] attempt 2",
    "tpux-plugin-nan-loss": "step 120 loss=nan",
    "tpux-plugin-uv-run": "[0] run by uv",
}
"""The plugins of examples/, and what their configs show."""


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    """What a new plugin and its tests require of this repository."""
    directory = tmp_path_factory.mktemp("wheels")
    for dist in ("core", "plugins/local", "plugins/testing"):
        build(ROOT / dist, directory)
    return directory


def build(project: Path, directory: Path) -> None:
    command = [BIN / "uv", "build", "--wheel", "--quiet", "--out-dir", directory]
    subprocess.run([*command, "--build-constraint", ROOT / "constraints.txt", project], check=True, timeout=300)


class Shell:
    """A shell in a project's directory, with an environment of its own that has the project's wheel and no other."""

    def __init__(self, directory: Path, wheels: Path, project: Path) -> None:
        build(project, wheels)
        environment, home = directory / "venv", directory / "user"
        subprocess.run([BIN / "uv", "venv", "--quiet", "--python", sys.executable, environment], check=True, timeout=99)
        install = [BIN / "uv", "pip", "install", "--quiet", "--python", environment / "bin/python"]
        wheel = next(wheels.glob(f"{project.name.replace('-', '_')}-*.whl"))
        chosen = ["--constraint", ROOT / "constraints.txt", "--find-links", wheels, f"{wheel}[test]"]
        subprocess.run([*install, *chosen], check=True, timeout=300)
        home.mkdir()
        self.project = project
        own = {"HOME": str(home), "TPUX_HOME": str(home / ".tpux"), "TPUX_CLOCK_RATE": "20"}
        path = os.pathsep.join([str(environment / "bin"), str(BIN), os.environ["PATH"]])  # BIN has uv
        self.env = {**{key: value for key, value in os.environ.items() if key != "PYTHONPATH"}, **own, "PATH": path}

    def __call__(self, command: str) -> str:
        done = subprocess.run(
            ["sh", "-c", command],
            cwd=self.project,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=250,
        )
        return f"{done.stdout}\nexit code {done.returncode}\n"


@pytest.mark.system
@pytest.mark.timeout(400)
@pytest.mark.parametrize("example", EXAMPLES)
def test_the_examples_are_built_and_pass_their_tests(wheels, tmp_path, example):
    for dist in ("doctor", "shell"):
        build(ROOT / "plugins" / dist, wheels)
    project = tmp_path / example
    shutil.copytree(ROOT / "examples/plugins" / example, project)
    run = Shell(tmp_path, wheels, project)
    try:
        tested = run("python -m pytest")
        assert tested.endswith("\nexit code 0\n"), tested
        shown = run("tpux run example.yaml")
        assert EXAMPLES[example] in shown, shown
    finally:
        run("tpux supervisor stop")


@pytest.mark.system
@pytest.mark.timeout(400)
@pytest.mark.parametrize("kind", [*KINDS])
def test_a_new_plugin_works_from_the_first_minute(tpux, wheels, tmp_path, kind):
    name = f"my-{kind}"
    typed = tpux("plugins", "new", name, "--kind", kind).stdout.splitlines()
    assert len(typed) == 3
    project = tpux.work / f"tpux-plugin-{name}"
    run = Shell(tmp_path, wheels, project)
    try:
        rows = {
            row["name"]: row["status"] for row in json.loads(run("tpux plugins list --json").rpartition("\nexit")[0])
        }
        assert rows[name] == "ok"
        tested = run(typed[1])
        assert re.search(r"\d passed", tested), tested
        assert tested.endswith("\nexit code 0\n"), tested
        assert SHOWN[kind] in run(typed[2])
        checked = run(f"tpux plugins check {name} --config example.yaml")
        assert checked.endswith("\nexit code 0\n"), checked
        assert "warning: " not in checked
    finally:
        run("tpux supervisor stop")


BOUND = 60.0
"""Real seconds from typing `tpux plugins new` to green tests, on an idle machine."""
FACTOR = 3
"""By how much a busy machine may be slower."""


@pytest.mark.system
@pytest.mark.timeout(400)
def test_a_new_plugin_has_green_tests_within_a_minute(tpux, wheels, tmp_path):
    """From typing: the project is written, built and installed into a new environment, and its tests pass."""
    begun = time.monotonic()
    typed = tpux("plugins", "new", "quick", "--kind", "module").stdout.splitlines()
    run = Shell(tmp_path, wheels, tpux.work / "tpux-plugin-quick")
    try:
        tested = run(typed[1])
        took = time.monotonic() - begun
    finally:
        run("tpux supervisor stop")
    assert tested.endswith("\nexit code 0\n"), tested
    assert took < BOUND * FACTOR, tested


@pytest.mark.system
def test_the_projects_pass_the_checks_of_code(tmp_path):
    """As this repository's own code: ruff, its format, and mypy as strict as possible."""
    for kind in KINDS:
        command = [sys.executable, "-m", "tpux", "plugins", "new", f"a-{kind}", "--kind", kind, "--directory", tmp_path]
        subprocess.run(command, check=True, capture_output=True, timeout=60)
    ruff = ["--config", ROOT / "pyproject.toml", "--config", 'lint.per-file-ignores = {"**/test_*.py" = ["S101"]}']
    checks = (["ruff", "check", *ruff], ["ruff", "format", "--check", *ruff], ["mypy", "--strict"])
    for program, *options in checks:
        files = "*/src/**/*.py" if program == "mypy" else "*/**/*.py"  # all tests have one name
        done = subprocess.run(
            [BIN / program, *options, *sorted(tmp_path.glob(files))],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=250,
        )
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    representative(
        [
            (("Hello", "--kind", "module"), "'Hello' cannot be a plugin's name"),
            (("resume", "--kind", "rule"), "the name 'resume' is taken: it is reserved for tpux"),
            (("docker", "--kind", "environment"), "the name 'docker' is taken: tpux-plugin-docker is installed"),
            (("list", "--kind", "command"), "the name 'list' is taken: tpux has a command of this name"),
            (("hello", "--kind", "plugin"), "'plugin' is not one of 'module', 'environment', 'allocator'"),
        ],
        2,
    ),
)
def test_a_name_that_is_taken_or_no_name_is_refused(runner, arguments, message):
    done = runner("plugins", "new", *arguments, code=2)
    assert message in done.stderr
    assert not [*runner.work.iterdir()]


def test_a_project_is_not_overwritten(runner, tmp_path):
    directory = tmp_path / "my plugins"
    directory.mkdir()
    command = ("plugins", "new", "hello", "--kind", "module", "--directory", str(directory))
    first = runner(*command).stdout.splitlines()[0]
    assert first == f"cd {shlex.quote(str(directory / 'tpux-plugin-hello'))} && pip install -e '.[test]'"
    (directory / "tpux-plugin-hello/mine").touch()
    assert "tpux-plugin-hello exists" in runner(*command, code=2).stderr
    assert (directory / "tpux-plugin-hello/mine").exists()
    assert [path.name for path in directory.iterdir()] == ["tpux-plugin-hello"]


@pytest.mark.parametrize("name", ["resample", "sampler"])
def test_a_name_may_contain_that_of_the_template(runner, tmp_path, name):
    runner("plugins", "new", name, "--kind", "module", "--directory", str(tmp_path))
    project = tmp_path / f"tpux-plugin-{name}"
    assert (project / f"src/tpux_{name}/__init__.py").exists()
    assert f'{name} = "tpux_{name}' in (project / "pyproject.toml").read_text()
