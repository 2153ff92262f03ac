"""What the system's OpenSSH needs to reach a job's workers as tpux does: its keys, and the pinned host keys."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tpux import HeldMachines, TpuxError, UsageError, Worker
from tpux_ssh.host_keys import HostKeys, known_hosts_lines
from tpux_ssh.keyfiles import login_keys
from tpux_ssh.section import section_of
from tpux_ssh.target import target_of


class OpenSsh:
    """A job's workers as Host blocks of an ssh_config.

    Args:
        held: the job and its machines.

    Raises:
        UsageError: its workers are not reached over ssh.
    """

    def __init__(self, held: HeldMachines) -> None:
        if held.allocation.transport != "ssh":
            message = f"the workers of job {held.job.id} are reached by {held.allocation.transport}, not over ssh"
            raise UsageError(message, hint=f"tpux exec {held.job.id} -- COMMAND works for them too")
        self._held = held
        self._directory = held.job.directory / "ssh"

    def alias(self, worker: Worker) -> str:
        """What a worker is called in the Host blocks."""
        return f"tpux-{int(self._held.job.id)}-{worker.index}"

    def learn_keys(self, workers: Sequence[Worker]) -> dict[int, TpuxError]:
        """Log in where no host key is pinned yet, which pins it; what went wrong, by worker."""
        strangers = [worker for worker in workers if not self._host_keys(worker).trusted()]
        answers = self._held.each(strangers, lambda host: host.worker)
        return {index: answer for index, answer in answers.items() if isinstance(answer, TpuxError)}

    def host_blocks(self, workers: Sequence[Worker]) -> str:
        """The Host blocks, and the known_hosts file that they name."""
        known = self._write("known_hosts", "".join(map(self._known, workers)))
        keys = [f"  IdentityFile {_quoted(path)}" for path in login_keys(section_of(self._held.job).login_key)]
        common = [
            *keys,
            "  IdentitiesOnly yes",
            f"  UserKnownHostsFile {_quoted(known)}",
            "  GlobalKnownHostsFile /dev/null",
            "  StrictHostKeyChecking yes",
            "  ServerAliveInterval 15",
        ]
        blocks = []
        for worker in workers:
            target = target_of(worker, self._held.job)
            own = [f"  HostName {target.host}", f"  Port {target.port}", f"  User {target.user}"]
            blocks.append("\n".join([f"Host {self.alias(worker)}", *own, *common, ""]))
        return "\n".join(blocks)

    def config_file(self, workers: Sequence[Worker]) -> Path:
        """A file with the Host blocks."""
        return self._write("config", self.host_blocks(workers))

    def forget(self, worker: Worker) -> bool:
        """Drop a worker's pinned host key; whether it had one that is not the allocator's."""
        return self._host_keys(worker).forget()

    def _host_keys(self, worker: Worker) -> HostKeys:
        return HostKeys(worker, target_of(worker, self._held.job), self._held.job)

    def _known(self, worker: Worker) -> str:
        return known_hosts_lines(
            [target_of(worker, self._held.job).known_hosts_name], self._host_keys(worker).trusted()
        )

    def _write(self, name: str, text: str) -> Path:
        self._directory.mkdir(exist_ok=True, mode=0o700)
        handle, new = tempfile.mkstemp(dir=self._directory, prefix=f".{name}.")  # mode 0600
        with os.fdopen(handle, "w") as file:
            file.write(text)
        return Path(new).replace(self._directory / name)


def _quoted(path: Path) -> str:
    return f'"{path}"' if " " in str(path) else str(path)
