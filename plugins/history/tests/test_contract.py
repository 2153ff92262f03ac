"""The command keeps its contract."""

from __future__ import annotations

from tpux_testing import CommandLine, command_contract


def test_command(tpux_cli: CommandLine) -> None:
    job = tpux_cli.run_job()
    wrong = [["77"], ["--since", "some day"], ["--prices", "none.yaml"]]
    command_contract("history", [], ["--json"], [job, "--json"], wrong=wrong, cli=tpux_cli)
