"""The SSH host keys that a job trusts: those that the allocator provides, else the first one that a server presented.

Each server has its own small file, because paramiko needs 170 ms to read a known_hosts file of 500 lines, and
several processes (the supervisor, `tpux exec`) may connect to a server for the first time at once.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tpux import HostIdentityError, Job, Worker
from tpux_ssh.address import Target
from tpux_ssh.algorithms import fastest_first


class HostKeyChangedError(HostIdentityError):
    """A server presented a key that is not trusted: it may be a different machine."""


class HostKeys:
    """The trusted host keys of one server, for one job. A key is the text `type base64`.

    Args:
        worker: `details["host_keys"]` has the keys that the allocator provides, one per line.
        target: the server.
        job: the job in whose directory a learned key is stored.
        jump: the server is the worker's jump host, whose key is kept when the machines are released.

    Attributes:
        job_key: the job's name, unique across stores.
        path: the file of the learned key.
    """

    def __init__(self, worker: Worker, target: Target, job: Job, *, jump: bool = False) -> None:
        provided = [
            " ".join(line.split()[:2]) for line in worker.details.get("host_keys", "").splitlines() if line.strip()
        ]
        if jump:
            provided = []
        self._provided = fastest_first(provided)
        self._worker = worker
        self._target = target
        self._job = job
        self.job_key = job.key
        directory = jump_keys_dir(job) if jump else host_keys_dir(job)
        self.path = directory / re.sub(r"[^\w.-]", "_", f"{target.host}_{target.port}")

    def trusted(self) -> tuple[str, ...]:
        """Return the trusted keys; empty if the server is unknown."""
        if self._provided:
            return self._provided
        try:
            lines = self.path.read_text().splitlines()
        except FileNotFoundError:
            return ()
        return tuple(line.partition(" ")[2] for line in lines)

    def trust(self, key: str) -> None:
        """Store the first key that the server presented.

        Raises:
            HostKeyChangedError: another process has stored a different key in the meantime.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle, name = tempfile.mkstemp(dir=self.path.parent, prefix=".new-")  # mode 0600
        try:
            with os.fdopen(handle, "w") as file:
                file.write(f"{self._target.known_hosts_name} {key}\n")
            os.link(name, self.path)
        except FileExistsError:
            if key not in self.trusted():
                raise self.changed_error(key) from None
        finally:
            Path(name).unlink()

    def forget(self) -> bool:
        """Delete the learned key, so that the next key is trusted.

        Returns:
            True if a key was stored.
        """
        try:
            self.path.unlink()
        except FileNotFoundError:
            return False
        return True

    def changed_error(self, presented: str) -> HostKeyChangedError:
        """Return the error for a server that presented an untrusted key."""
        job, index = self._job.id, self._worker.index
        hint = f"if the machine was recreated on purpose, run: tpux ssh {int(job)} --worker {index} --forget-host-key"
        if self._provided:
            hint = "the expected key is from the allocator: this is a different machine, or an interception"
        return HostKeyChangedError(
            f"the host key of {self._target.known_hosts_name} has changed: the server presented"
            f" {fingerprint(presented)}, expected {' or '.join(map(fingerprint, self.trusted()))}",
            where=f"worker {index}",
            hint=hint,
        )


def host_keys_dir(job: Job) -> Path:
    """Return the directory of a job's learned host keys."""
    return job.directory / "ssh" / "host_keys"


def jump_keys_dir(job: Job) -> Path:
    """Return the directory of the learned host key of a job's jump host."""
    return job.directory / "ssh" / "jump_host_keys"


def known_hosts_lines(names: Sequence[str], keys: Sequence[str]) -> str:
    """Return the lines of a known_hosts file for one server with several names."""
    return "".join(f"{','.join(names)} {key}\n" for key in keys)


def fingerprint(key: str) -> str:
    """Return the fingerprint of a key in OpenSSH's format: `ED25519 SHA256:...`."""
    import base64
    import binascii
    import hashlib

    kind, _, data = key.partition(" ")
    try:
        digest = base64.b64encode(hashlib.sha256(base64.b64decode(data)).digest()).decode().rstrip("=")
    except binascii.Error:
        digest = "(invalid key)"
    return f"{kind.removeprefix('ssh-').upper()} SHA256:{digest}"
