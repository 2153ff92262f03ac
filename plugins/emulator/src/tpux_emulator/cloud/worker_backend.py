"""What the cloud asks of those who run its workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from tpux_emulator.cloud.records import NodeRecord, WorkerRecord


class WorkerBackend(Protocol):
    """Runs the workers of nodes."""

    ssh_port: int | None

    def use_slot_counter(self, next_slot: Callable[[], int]) -> None:
        """Take slots, of which addresses are made, from this counter."""

    def allocate_workers(self, node: NodeRecord, count: int) -> list[WorkerRecord]:
        """Give a new node its workers' names and addresses. Nothing runs yet."""

    async def adopt(self, nodes: list[NodeRecord]) -> None:
        """Take over the workers that an emulator before us left running, and end those that nobody knows."""

    async def shutdown(self, nodes: list[NodeRecord]) -> None:
        """End all workers."""

    async def boot(self, node: NodeRecord) -> None:
        """Start all workers of a node and fill in their `host_keys`; those that run already are kept.

        Raises:
            TpuxError: a worker did not come up.
        """

    async def stop_all(self, node: NodeRecord, *, keep_disks: bool) -> None:
        """End every process on a node's workers; without `keep_disks` nothing of them is left."""

    async def send_notice(self, node: NodeRecord) -> None:
        """Send every program on the workers a SIGTERM, as a shutting down machine does."""

    async def update_accounts(self, node: NodeRecord) -> None:
        """Bring the accounts of running workers in line with the node's `ssh-keys`."""

    async def cut(self, node: NodeRecord, worker: WorkerRecord, how: str) -> None:
        """Cut a worker from the network: `hang` or `refuse`; an empty `how` restores it."""

    async def rotate_host_key(self, node: NodeRecord, worker: WorkerRecord) -> None:
        """Give a worker another host key."""

    def alive(self, node: NodeRecord, worker: WorkerRecord) -> bool:
        """Whether the worker runs."""
