"""The worker backend of `--no-workers`: addresses without machines."""

from __future__ import annotations

from collections.abc import Callable

from tpux_emulator.cloud.records import NodeRecord, WorkerRecord, stable_number
from tpux_emulator.workers.addresses import AddressBlock


class AddressOnlyBackend:
    """Allocates names and addresses, and runs nothing.

    Args:
        block: the emulator's addresses.
    """

    ssh_port: int | None = None
    shared = ""

    def __init__(self, block: AddressBlock) -> None:
        self._block = block
        self._next_slot: Callable[[], int] = lambda: 0

    def use_slot_counter(self, next_slot: Callable[[], int]) -> None:
        """Take slot numbers from a persistent counter, so that an address is reused as late as possible."""
        self._next_slot = next_slot

    def allocate_workers(self, node: NodeRecord, count: int) -> list[WorkerRecord]:
        """Return the workers of a new node, with names and addresses."""
        prefix = f"t1v-n-{stable_number(str(node.uid)):x}"[:14]
        workers = []
        for index in range(count):
            slot = self._next_slot()
            external, internal = self._block.external(slot), self._block.internal(slot)
            name = f"{prefix}-w-{index}"
            workers.append(WorkerRecord(index=index, hostname=name, slot=slot, external=external, internal=internal))
        return workers

    async def adopt(self, nodes: list[NodeRecord]) -> None:
        """Do nothing."""

    async def shutdown(self, nodes: list[NodeRecord]) -> None:
        """Do nothing."""

    async def boot(self, node: NodeRecord) -> None:
        """Do nothing."""

    async def stop_all(self, node: NodeRecord, *, keep_disks: bool) -> None:
        """Do nothing."""

    async def send_notice(self, node: NodeRecord) -> None:
        """Do nothing."""

    async def update_accounts(self, node: NodeRecord) -> None:
        """Do nothing."""

    async def cut(self, node: NodeRecord, worker: WorkerRecord, how: str) -> None:
        """Do nothing."""

    async def rotate_host_key(self, node: NodeRecord, worker: WorkerRecord) -> None:
        """Do nothing."""

    async def reboot(self, node: NodeRecord, worker: WorkerRecord) -> None:
        """Do nothing."""

    def alive(self, node: NodeRecord, worker: WorkerRecord) -> bool:  # noqa: ARG002
        """Return True: an address cannot die."""
        return True
