"""The commands keep their contract."""

from __future__ import annotations

from tpux_testing import command_contract


def test_commands() -> None:
    command_contract("emulator", ["status"], ["env"], wrong=[["late"], ["slow"], ["nonsense"]])
