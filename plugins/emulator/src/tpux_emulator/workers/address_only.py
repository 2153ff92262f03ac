"""Workers that are only on paper: addresses with nobody behind them (`--no-workers`)."""

from __future__ import annotations

from collections.abc import Callable

from tpux_emulator.cloud.records import NodeRecord, WorkerRecord, stable_number
from tpux_emulator.workers.addresses import AddressBlock


class AddressOnlyBackend:
    """Gives out names and addresses, and runs nothing.

    Args:
        block: the addresses.
    """

    ssh_port: int | None = None

    def __init__(self, block: AddressBlock) -> None:
        self._block = block
        self._next_slot: Callable[[], int] = lambda: 0

    def use_slot_counter(self, next_slot: Callable[[], int]) -> None:
        """Take slots from a counter that outlives us, so that addresses are used again only after all others."""
        self._next_slot = next_slot

    def allocate_workers(self, node: NodeRecord, count: int) -> list[WorkerRecord]:
        """Names and addresses for a new node's workers."""
        stem = f"t1v-n-{stable_number(str(node.uid)):x}"[:14]
        workers = []
        for index in range(count):
            slot = self._next_slot()
            external, internal = self._block.external(slot), self._block.internal(slot)
            name = f"{stem}-w-{index}"
            workers.append(WorkerRecord(index=index, hostname=name, slot=slot, external=external, internal=internal))
        return workers

    async def adopt(self, nodes: list[NodeRecord]) -> None:
        """Nobody was left running."""

    async def shutdown(self, nodes: list[NodeRecord]) -> None:
        """Nothing to end."""

    async def boot(self, node: NodeRecord) -> None:
        """Nothing to start."""

    async def stop_all(self, node: NodeRecord, *, keep_disks: bool) -> None:
        """Nothing to end."""

    async def send_notice(self, node: NodeRecord) -> None:
        """Nobody to warn."""

    async def update_accounts(self, node: NodeRecord) -> None:
        """No accounts."""

    async def cut(self, node: NodeRecord, worker: WorkerRecord, how: str) -> None:
        """Nothing to cut."""

    async def rotate_host_key(self, node: NodeRecord, worker: WorkerRecord) -> None:
        """No keys."""

    def alive(self, node: NodeRecord, worker: WorkerRecord) -> bool:  # noqa: ARG002
        """On paper they never die."""
        return True
