"""OpenSSH client configuration for a job's workers: Host blocks with tpux's login keys and trusted host keys."""

from __future__ import annotations

import os
import shlex
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tpux import TpuxError, UsageError, Worker
from tpux.api import JobConnection
from tpux_ssh.host_keys import HostKeys, known_hosts_lines
from tpux_ssh.keyfiles import login_keys
from tpux_ssh.section import section_of
from tpux_ssh.target import iap_command, jump_target, resolved, target_of


class OpenSsh:
    """Writes the OpenSSH configuration for a job's workers.

    Args:
        held: the job and its machines.

    Raises:
        UsageError: the job does not use the transport ssh.
    """

    def __init__(self, held: JobConnection) -> None:
        if held.allocation.transport != "ssh":
            message = f"{held.title} uses the transport {held.allocation.transport}, not ssh"
            raise UsageError(message, hint=f"use tpux exec {held.name} COMMAND")
        self._held = held
        self._directory = held.job.directory / "ssh"

    def alias(self, worker: Worker) -> str:
        """Return the name of a worker in the Host blocks."""
        return f"tpux-{self._held.name}-{worker.index}"

    def learn_keys(self, workers: Sequence[Worker]) -> dict[int, TpuxError]:
        """Log in to each worker without a trusted host key, which stores its key.

        Returns:
            The errors, by worker index.
        """
        unknown = [worker for worker in workers if not self._knows(worker)]
        own = replace(self._held, supervisor=None)  # a connection that exists learns nothing
        results = own.each(unknown, lambda host: host.worker)
        return {index: result for index, result in results.items() if isinstance(result, TpuxError)}

    def host_blocks(self, workers: Sequence[Worker]) -> str:
        """Return the Host blocks, and write the known_hosts file that they refer to."""
        known = self._write("known_hosts", "".join(map(self._known_hosts, workers)))
        job = self._held.job
        keys = login_keys(section_of(job).login_key, Path(resolved(job, "keys")))
        jump = jump_target(job)
        common = [
            *(f"  IdentityFile {_quoted(path)}" for path in keys),
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
            if section_of(job).iap:
                own.append(f"  ProxyCommand {shlex.join(iap_command(worker, job, '%p'))}")
            elif jump is not None:
                own.append(f"  ProxyJump tpux-{int(job.id)}-jump")
            blocks.append("\n".join([f"Host {self.alias(worker)}", *own, *common, ""]))
        if jump is not None:
            own = [f"  HostName {jump.host}", f"  Port {jump.port}", f"  User {jump.user}"]
            blocks.append("\n".join([f"Host tpux-{int(job.id)}-jump", *own, *common, ""]))
        return "\n".join(blocks)

    def config_file(self, workers: Sequence[Worker]) -> Path:
        """Write the Host blocks to a file and return its path."""
        return self._write("config", self.host_blocks(workers))

    def forget_key(self, worker: Worker) -> bool:
        """Delete the learned host keys of a worker and of the jump host.

        Returns:
            True if a key was stored.
        """
        learned = self._host_keys(worker).forget()
        of_jump_host = self._jump_keys(worker)
        return (of_jump_host is not None and of_jump_host.forget()) or learned

    def _host_keys(self, worker: Worker) -> HostKeys:
        return HostKeys(worker, target_of(worker, self._held.job), self._held.job)

    def _knows(self, worker: Worker) -> bool:
        jump_keys = self._jump_keys(worker)
        return bool(self._host_keys(worker).trusted()) and (jump_keys is None or bool(jump_keys.trusted()))

    def _jump_keys(self, worker: Worker) -> HostKeys | None:
        jump = jump_target(self._held.job)
        return None if jump is None else HostKeys(worker, jump, self._held.job, jump=True)

    def _known_hosts(self, worker: Worker) -> str:
        name = target_of(worker, self._held.job).known_hosts_name
        lines = known_hosts_lines([name], self._host_keys(worker).trusted())
        jump, jump_keys = jump_target(self._held.job), self._jump_keys(worker)
        if jump is not None and jump_keys is not None:
            lines += known_hosts_lines([jump.known_hosts_name], jump_keys.trusted())
        return lines

    def _write(self, name: str, text: str) -> Path:
        self._directory.mkdir(exist_ok=True, mode=0o700)
        handle, new = tempfile.mkstemp(dir=self._directory, prefix=f".{name}.")  # mode 0600
        with os.fdopen(handle, "w") as file:
            file.write(text)
        return Path(new).replace(self._directory / name)


def _quoted(path: Path) -> str:
    return f'"{path}"' if " " in str(path) else str(path)
