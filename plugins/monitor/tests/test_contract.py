"""The command keeps its contract."""

from __future__ import annotations

from tpux_testing import CommandLine, command_contract


def test_command(tpux_cli: CommandLine) -> None:
    command_contract("monitor", ["--once"], wrong=[[], ["--interval", "soon"]], cli=tpux_cli)
