"""The commands keep their contract; what they do is tested with stand-ins for systemd and cron."""

from __future__ import annotations

import pytest

from tpux_testing import command_contract


@pytest.mark.parametrize("command", ["supervisor install", "supervisor uninstall"])
def test_commands(command: str) -> None:
    command_contract(command, wrong=[["now"]])
