"""What tpux relies on, and the command with a job, on this machine."""

from __future__ import annotations

from tpux_testing import CommandLine, command_contract


def test_contract(tpux_cli: CommandLine) -> None:
    """The help, errors of use, and what is printed."""
    tpux_cli.run_job({"command": {"cmd": "exit 3"}})
    assert tpux_cli.json("sample") == {"failed": 1}
    command_contract("sample", [], ["--json"], wrong=[["12"]], cli=tpux_cli)
