"""The command keeps its contract."""

from __future__ import annotations

from tpux_testing import CommandLine, command_contract


def test_command(tpux_cli: CommandLine) -> None:
    tpux_cli.run_job(keep=True)
    wrong = [["77"], ["--prices", "none.yaml"], ["--al-users"]]
    command_contract("info", [], ["--json"], ["--all-users"], ["--all-users", "--json"], wrong=wrong, cli=tpux_cli)
