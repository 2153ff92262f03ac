"""The commands keep their contract, on machines that an ended job holds."""

from __future__ import annotations

import pytest

from tpux_testing import CommandLine, command_contract


@pytest.mark.system
def test_commands(tpux_cli: CommandLine) -> None:
    job = tpux_cli.run_job({"command": {"cmd": "echo text >made"}}, keep=True)
    wrong = [["77", "ls"], [job, "--worker", "9", "ls"], [job]]
    command_contract("exec", [job, "ls -a"], [job, "--json", "cat made"], [job, "exit 3"], wrong=wrong, cli=tpux_cli)
    wrong = [["a", "b"], ["77:made", "."], [f"{job}:~ann/made", "."]]
    command_contract("cp", [f"{job}:made", "."], [f"{job}:missing", "."], wrong=wrong, cli=tpux_cli)
    assert (tpux_cli.work / "made").read_text() == "text\n"
