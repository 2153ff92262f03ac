"""The interface of the two kinds of worker: with its own root file system, and with a home directory only."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from tpux_emulator.cloud.records import NodeRecord, WorkerRecord


class MachineDriver(Protocol):
    """Prepares the disks of workers, and says which programs start and change them.

    `shared` is where they find a common directory.
    `pid` is the process that was started with `command`, `key` the worker's `worker_key`.
    """

    ssh_port: int
    metadata_port: int
    shared: str

    def open(self) -> None:
        """Prepare what all workers share.

        Raises:
            TpuxError: this machine does not permit it.
        """

    def close(self) -> None:
        """Remove what all workers share, once none runs."""

    def prepare(self, node: NodeRecord, worker: WorkerRecord) -> None:
        """Write a worker's disk, a new one or one that was kept."""

    def command(self, node: NodeRecord, worker: WorkerRecord) -> list[str]:
        """Return the command that runs the worker."""

    def disk(self, node: NodeRecord, worker: WorkerRecord) -> Path:
        """Return the directory of the worker's disk."""

    def pid_file(self, node: NodeRecord, worker: WorkerRecord) -> Path:
        """Return the file that sshd writes when it listens."""

    def host_key(self, node: NodeRecord, worker: WorkerRecord) -> Path:
        """Return the file of its public host key."""

    def processes(self, pid: int, key: str) -> list[int]:
        """Return all processes on the worker, without `pid` itself."""

    def to_kill(self, pid: int, key: str) -> list[int]:
        """Return the processes to kill to end every process on the worker; empty when none is left."""

    def accounts_command(self, node: NodeRecord, worker: WorkerRecord, pid: int) -> list[str]:
        """Return a command that reads `ssh-keys` from its input and updates the accounts of a running worker."""

    def sshd_command(self, node: NodeRecord, worker: WorkerRecord, pid: int) -> list[str]:
        """Return a command that starts the worker's sshd again."""

    def rotate_host_key_command(self, node: NodeRecord, worker: WorkerRecord, pid: int) -> list[str]:
        """Return a command that replaces the worker's host key; sshd reads the new one when it starts again."""

    def wipe(self, node: NodeRecord, worker: WorkerRecord) -> None:
        """Delete the worker's disk."""


def worker_key(node: NodeRecord, worker: WorkerRecord) -> str:
    """Return the key of a worker, which names its disk and marks its processes."""
    return f"{node.uid}-{worker.index}"
