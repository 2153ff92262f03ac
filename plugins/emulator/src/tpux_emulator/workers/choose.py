"""Which fleet this machine can run."""

from __future__ import annotations

from tpux_emulator.paths import Home
from tpux_emulator.workers.addresses import Block
from tpux_emulator.workers.paper import PaperFleet


def choose_fleet(home: Home, block: Block, ssh_port: int | None) -> PaperFleet:
    """Nothing but paper yet."""
    return PaperFleet(block)
