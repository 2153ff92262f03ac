"""The interface through which the cloud runs workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from tpux_emulator.cloud.records import NodeRecord, WorkerRecord


class WorkerBackend(Protocol):
    """Runs the workers of nodes."""

    ssh_port: int | None
    shared: str

    def use_slot_counter(self, next_slot: Callable[[], int]) -> None:
        """Take slot numbers, which determine addresses, from a counter."""

    def allocate_workers(self, node: NodeRecord, count: int) -> list[WorkerRecord]:
        """Return the workers of a new node, with names and addresses. Nothing is started yet."""

    async def adopt(self, nodes: list[NodeRecord]) -> None:
        """Take over the workers that a previous emulator process left running; stop those of no known node."""

    async def shutdown(self, nodes: list[NodeRecord]) -> None:
        """Stop all workers."""

    async def boot(self, node: NodeRecord) -> None:
        """Start the workers of a node that do not run yet, and set their `host_keys`.

        Raises:
            TpuxError: a worker did not start.
        """

    async def stop_all(self, node: NodeRecord, *, keep_disks: bool) -> None:
        """Kill every process on a node's workers; without `keep_disks`, delete their disks too."""

    async def send_notice(self, node: NodeRecord) -> None:
        """Send SIGTERM to every program on the workers, as the shutdown of a machine does."""

    async def update_accounts(self, node: NodeRecord) -> None:
        """Update the accounts of running workers from the node's `ssh-keys`."""

    async def cut(self, node: NodeRecord, worker: WorkerRecord, how: str) -> None:
        """Cut a worker from the network: `hang` or `refuse`; an empty `how` restores it."""

    async def rotate_host_key(self, node: NodeRecord, worker: WorkerRecord) -> None:
        """Replace a worker's host key."""

    async def reboot(self, node: NodeRecord, worker: WorkerRecord) -> None:
        """Kill a worker's processes and start it again with its disk."""

    def alive(self, node: NodeRecord, worker: WorkerRecord) -> bool:
        """Return True if the worker runs."""
