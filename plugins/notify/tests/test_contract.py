"""The command keeps its contract."""

from __future__ import annotations

from tpux_testing import CommandLine, command_contract


def test_command(tpux_cli: CommandLine, http) -> None:
    job = tpux_cli.run_job({"notify": {"urls": [f"json://127.0.0.1:{http.port}"]}})
    other = tpux_cli.run_job()
    command_contract("notify", ["test", job], wrong=[["test"], ["test", "77"], ["test", other]], cli=tpux_cli)
