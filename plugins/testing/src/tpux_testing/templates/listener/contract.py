"""What tpux relies on, and a whole job, on this machine."""

from __future__ import annotations

from pathlib import Path

from tpux_testing import CommandLine, hooks_contract, listener_contract, section_contract


def test_contracts(tmp_path: Path) -> None:
    """The hooks and the keys; every event, more than once, and for jobs without the section."""
    section = {"path": str(tmp_path / "ends")}
    hooks_contract("sample")
    section_contract("sample", section)
    listener_contract("sample", {"sample": section})


def test_a_job(tpux_cli: CommandLine, tmp_path: Path) -> None:
    """The supervisor, which calls listeners, waits for them before it ends."""
    ends = tmp_path / "ends"
    job = tpux_cli.run_job({"sample": {"path": str(ends)}, "command": {"cmd": "exit 3"}})
    tpux_cli("delete", job, "-y")
    assert "failed: exit code 3" in ends.read_text()
