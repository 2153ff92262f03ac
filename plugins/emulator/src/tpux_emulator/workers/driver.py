"""What a kind of machine must be able to do."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from tpux_emulator.cloud.records import NodeRecord, WorkerRecord


class MachineDriver(Protocol):
    """One kind of worker: with its own root, or with its own home only."""

    ssh_port: int
    metadata_port: int

    def open(self) -> None:
        """Make ready what all machines share.

        Raises:
            TpuxError: the machine does not allow it.
        """

    def close(self) -> None:
        """Take away what all machines share; none runs any more."""

    def prepare(self, node: NodeRecord, worker: WorkerRecord) -> None:
        """Write a worker's disk, new or kept from before."""

    def command(self, node: NodeRecord, worker: WorkerRecord) -> list[str]:
        """The program that is the worker, as an argument list."""

    def disk(self, node: NodeRecord, worker: WorkerRecord) -> Path:
        """The directory that holds the worker's disk."""

    def pid_file(self, node: NodeRecord, worker: WorkerRecord) -> Path:
        """The file that sshd writes when it listens."""

    def host_key(self, node: NodeRecord, worker: WorkerRecord) -> Path:
        """The file with its public host key."""

    def processes(self, pid: int, mark: str) -> list[int]:
        """All processes on the worker that `pid` started, without `pid` itself."""

    def to_kill(self, pid: int, mark: str) -> list[int]:
        """Those to kill so that every process on the worker that `pid` started ends; empty when all have."""

    def accounts_command(self, node: NodeRecord, worker: WorkerRecord, pid: int) -> list[str]:
        """A program that reads `ssh-keys` and brings the accounts of a running worker in line."""

    def sshd_command(self, node: NodeRecord, worker: WorkerRecord, pid: int) -> list[str]:
        """A program that starts the worker's sshd again."""

    def rotate_host_key_command(self, node: NodeRecord, worker: WorkerRecord, pid: int) -> list[str]:
        """A program that gives the worker another host key; sshd reads it when it starts again."""

    def wipe(self, node: NodeRecord, worker: WorkerRecord) -> None:
        """Throw a worker's disk away."""


def worker_key(node: NodeRecord, worker: WorkerRecord) -> str:
    """Return the key of a worker, which names its disk and marks its processes."""
    return f"{node.uid}-{worker.index}"
