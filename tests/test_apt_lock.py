"""Each module that installs packages with apt: another program holds the lock for longer than the limit."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import tpux_docker.scripts
import tpux_gcsfuse.scripts
import tpux_venv.scripts
from tpux import Sh
from tpux_venv.section import VenvSection
from tpux_worker_tools import apt

LOCKED = "E: Could not get lock /var/lib/apt/lists/lock. It is held by process 7 (apt-get)"
TOOLS = ["sh", "bash", "cat", "date", "env", "grep", "mkdir", "mktemp", "rm", "timeout"]
MODULES: dict[str, Callable[[], Sh]] = {
    "docker": tpux_docker.scripts.install,
    "gcsfuse": lambda: tpux_gcsfuse.scripts.install(apt.LOCK_TIMEOUT),
    "venv": lambda: tpux_venv.scripts.script_step(VenvSection(), tpux_venv.scripts.install_python()),
}


def test_each_module_that_calls_apt_is_tested():
    sources = Path(__file__).parents[1].glob("plugins/*/src/*/*.py")
    found = {path.parent.name for path in sources if "apt.functions(" in path.read_text()}
    assert found == {f"tpux_{name}" for name in MODULES}
    sources = Path(__file__).parents[1].glob("plugins/*/src/**/*.py")
    assert [path.stem for path in sources if "apt-get -" in path.read_text()] == ["apt"], "of tpux_worker_tools"


@pytest.mark.parametrize("module", MODULES)
def test_apt_locked_for_longer_than_the_limit(tmp_path, local_host, monkeypatch, module):
    """Nobody is killed, nothing is installed half, and the message says for how long who was waited for."""
    monkeypatch.setattr(apt, "LOCK_TIMEOUT", 3.0)
    for name in TOOLS:
        (tmp_path / name).symlink_to(str(shutil.which(name)))
    programs = {
        "id": "echo 1000",
        "sudo": 'shift; exec "$@"',
        "true": "exit 0",
        "sleep": "exec /bin/sleep 0.1",
        "curl": "exit 0",
        "apt-get": f'echo "$@" >>{tmp_path}/calls; echo "{LOCKED}"; exit 100',
    }
    for name, script in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "tee").symlink_to(tmp_path / "true")
    (tmp_path / "install").symlink_to(tmp_path / "true")
    done = local_host(PATH=str(tmp_path)).run(f"set -e\n{MODULES[module]().script}", timeout=60)
    last = done.text.splitlines()[-1]
    assert done.code == 75, done.text
    assert re.match(r"another program has held the lock of apt for [3-9] s: wait for it,", last), done.text
    calls = (tmp_path / "calls").read_text().splitlines()
    assert len(calls) > 1, "it was tried again within the limit"
    assert all(call.endswith(" update") for call in calls), "nothing else after a failed update"
