"""The pytest plugin: a temporary home for a test, and the command line in one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tpux_testing.commands import CommandLine


@pytest.fixture
def tpux_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Set HOME and the store to new directories for one test; return the store's.

    Example:
        def test_keys(tpux_home):
            preflight(job())
            assert (tpux_home / "keys").exists()
    """
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("TPUX_HOME", str(home / ".tpux"))
    return home / ".tpux"


@pytest.fixture
def tpux_cli(tmp_path: Path) -> Iterator[CommandLine]:
    """Return the command `tpux`, with a store and a supervisor of its own; see `CommandLine`.

    Example:
        def test_tally(tpux_cli):
            tpux_cli.run_job()
            assert tpux_cli.json("tally") == {"succeeded": 1}
    """
    from tpux_testing.commands import CommandLine

    with CommandLine(tmp_path / "tpux-cli") as cli:
        yield cli
