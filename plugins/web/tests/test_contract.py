"""The command keeps its contract."""

from __future__ import annotations

from tpux_testing import CommandLine, command_contract


def test_command(tpux_cli: CommandLine) -> None:
    command_contract("web", wrong=[["--socket", "--port", "1"], ["--port", "soon"], ["14"]], cli=tpux_cli)
