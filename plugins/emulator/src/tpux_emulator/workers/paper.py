"""Workers that are only on paper: addresses with nobody behind them (`--no-workers`)."""

from __future__ import annotations

from tpux_emulator.cloud.cloud import Cloud
from tpux_emulator.cloud.names import number_for
from tpux_emulator.cloud.records import NodeRecord, WorkerRecord
from tpux_emulator.workers.addresses import Block


class PaperFleet:
    """Gives out names and addresses, and runs nothing.

    Args:
        block: the addresses.
    """

    def __init__(self, block: Block) -> None:
        self.block = block
        self.cloud: Cloud | None = None

    def place(self, node: NodeRecord, count: int) -> list[WorkerRecord]:
        """Names and addresses for a new node's workers; addresses are used again only after all others."""
        assert self.cloud is not None  # noqa: S101  set before the first request
        stem = f"t1v-n-{number_for(str(node.uid)):x}"[:14]
        workers = []
        for index in range(count):
            slot = self.cloud.count("slots") - 1
            external, internal = self.block.external(slot), self.block.internal(slot)
            name = f"{stem}-w-{index}"
            workers.append(WorkerRecord(index=index, hostname=name, slot=slot, external=external, internal=internal))
        return workers

    async def boot(self, node: NodeRecord) -> None:
        """Nothing to start."""

    async def halt(self, node: NodeRecord, *, keep_disks: bool) -> None:
        """Nothing to end."""

    async def warn(self, node: NodeRecord) -> None:
        """Nobody to warn."""

    async def update_accounts(self, node: NodeRecord) -> None:
        """No accounts."""

    async def cut(self, worker: WorkerRecord, how: str) -> None:
        """Nothing to cut."""

    def alive(self, worker: WorkerRecord) -> bool:
        """On paper they never die."""
        return True
