"""Workers that are only on paper: addresses with nobody behind them (`--no-workers`)."""

from __future__ import annotations

from collections.abc import Callable

from tpux_emulator.cloud.names import number_for
from tpux_emulator.cloud.records import NodeRecord, WorkerRecord
from tpux_emulator.workers.addresses import Block


class PaperFleet:
    """Gives out names and addresses, and runs nothing.

    Args:
        block: the addresses.
    """

    ssh_port: int | None = None

    def __init__(self, block: Block) -> None:
        self._block = block
        self._next_slot: Callable[[], int] = lambda: 0

    def number_slots(self, next_slot: Callable[[], int]) -> None:
        """Take slots from a counter that outlives us, so that addresses are used again only after all others."""
        self._next_slot = next_slot

    def place(self, node: NodeRecord, count: int) -> list[WorkerRecord]:
        """Names and addresses for a new node's workers."""
        stem = f"t1v-n-{number_for(str(node.uid)):x}"[:14]
        workers = []
        for index in range(count):
            slot = self._next_slot()
            external, internal = self._block.external(slot), self._block.internal(slot)
            name = f"{stem}-w-{index}"
            workers.append(WorkerRecord(index=index, hostname=name, slot=slot, external=external, internal=internal))
        return workers

    async def open(self, nodes: list[NodeRecord]) -> None:
        """Nobody was left running."""

    async def close(self, nodes: list[NodeRecord]) -> None:
        """Nothing to end."""

    async def boot(self, node: NodeRecord) -> None:
        """Nothing to start."""

    async def halt(self, node: NodeRecord, *, keep_disks: bool) -> None:
        """Nothing to end."""

    async def warn(self, node: NodeRecord) -> None:
        """Nobody to warn."""

    async def update_accounts(self, node: NodeRecord) -> None:
        """No accounts."""

    async def cut(self, node: NodeRecord, worker: WorkerRecord, how: str) -> None:
        """Nothing to cut."""

    async def rekey(self, node: NodeRecord, worker: WorkerRecord) -> None:
        """No keys."""

    def alive(self, node: NodeRecord, worker: WorkerRecord) -> bool:  # noqa: ARG002
        """On paper they never die."""
        return True
