"""What the cloud asks of those who run its workers."""

from __future__ import annotations

from typing import Protocol

from tpux_emulator.cloud.records import NodeRecord, WorkerRecord


class Fleet(Protocol):
    """Runs the workers of nodes."""

    def place(self, node: NodeRecord, count: int) -> list[WorkerRecord]:
        """Give a new node its workers' names and addresses. Nothing runs yet."""

    async def boot(self, node: NodeRecord) -> None:
        """Start all workers of a node and fill in their `pid` and `host_keys`; those that run already are kept.

        Raises:
            TpuxError: a worker did not come up.
        """

    async def halt(self, node: NodeRecord, *, keep_disks: bool) -> None:
        """End every process on a node's workers; without `keep_disks` nothing of them is left."""

    async def warn(self, node: NodeRecord) -> None:
        """Send every program on the workers a SIGTERM, as a shutting down machine does."""

    async def update_accounts(self, node: NodeRecord) -> None:
        """Bring the accounts of running workers in line with the node's `ssh-keys`."""

    async def cut(self, worker: WorkerRecord, how: str) -> None:
        """Cut a worker from the network: `hang` or `refuse`; an empty `how` restores it."""

    def alive(self, worker: WorkerRecord) -> bool:
        """Whether the worker runs."""
