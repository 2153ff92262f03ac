"""Commands that call tpux in another process execute nothing of the directory in which they are typed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tpux import TpuxError
from tpux_code import dev
from tpux_monitor import actions as monitor
from tpux_rehearse import sandbox
from tpux_sweep import cli as sweep
from tpux_tasks import cli as tasks
from tpux_web import actions as web


def run_dev() -> None:
    follower = dev._Follower("1")
    follower.run("--version")
    assert follower._process is not None
    assert follower._process.wait(60) == 0


CALLS: dict[str, Callable[[], object]] = {
    "code": run_dev,
    "monitor": lambda: monitor.run(next(iter(monitor.ACTIONS.values())), []),
    "rehearse": lambda: sandbox.run_tpux("--version"),
    "sweep": lambda: sweep._read_config(Path("missing.yaml"), []),
    "tasks": lambda: tasks._tpux("--version"),
    "web": lambda: web._run("stop", "--dry-run", "1"),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_module_of_the_current_directory_is_not_imported(name, tmp_path, monkeypatch):
    for module in ("typer", "tpux"):
        (tmp_path / f"{module}.py").write_text("open('executed', 'w').close()\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TPUX_HOME", str(tmp_path / "home"))
    try:
        CALLS[name]()
    except TpuxError:
        assert name == "sweep", "its config is missing"
    assert not Path("executed").exists()
