"""The pytest plugin: a temporary home for a test."""

from __future__ import annotations

from pathlib import Path

import pytest


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
