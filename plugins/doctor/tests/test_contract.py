"""The commands keep their contract, on machines that an ended job holds."""

from __future__ import annotations

from tpux_testing import CommandLine, command_contract


def test_commands(tpux_cli: CommandLine) -> None:
    job = tpux_cli.run_job(keep=True)
    wrong = [["77"], [job, "--worker", "9"], []]
    for command in ("check", "diagnose"):
        command_contract(command, [job], [job, "--json"], wrong=wrong, cli=tpux_cli)
    command_contract("solve", [job, "--dry-run"], [job, "--dry-run", "--json"], wrong=wrong, cli=tpux_cli)
