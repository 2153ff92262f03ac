"""Each dist builds to a wheel that installs and works with pip alone, into an empty environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

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


@pytest.mark.timeout(400)
def test_every_dist_builds_to_one_wheel(wheels):
    names = [wheel.name.split("-")[0] for wheel in wheels.glob("*.whl")]
    expected = ["tpux_core" if path.name == "core" else f"tpux_plugin_{path.name}" for path in DISTS]
    assert sorted(names) == sorted(expected)


@pytest.mark.timeout(400)
def test_core_and_local_work_alone(wheels, tmp_path):
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv/bin/python"
    chosen = [next(wheels.glob("tpux_core-*")), next(wheels.glob("tpux_plugin_local-*"))]
    pip = [python, "-m", "pip", "install", "--quiet", "--constraint", ROOT / "constraints.txt", *chosen]
    subprocess.run(pip, check=True, timeout=300)
    env = {**os.environ, "TPUX_HOME": str(tmp_path / "home")}
    tpux = tmp_path / "venv/bin/tpux"
    shown = subprocess.run([tpux, "plugins", "list", "--json"], env=env, capture_output=True, check=True, timeout=60)
    assert [(row["name"], row["status"]) for row in json.loads(shown.stdout)] == [("local", "ok")]
    (tmp_path / "job.yaml").write_text("command: {cmd: echo hello}\n")
    done = subprocess.run([tpux, "run", tmp_path / "job.yaml"], env=env, capture_output=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, b"[0] hello\n"), done.stderr
