"""The host keys that a job trusts: the allocator's word where it has one, else what was seen first.

One small file a server: paramiko takes 170 ms to read a known_hosts of 500 lines, and several processes
(the supervisor, `tpux exec`) may meet a server for the first time at once.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tpux import HostUnreachableError, Job, Worker
from tpux_ssh.algorithms import fastest_first
from tpux_ssh.target import Target

Keys = tuple[str, ...]
"""Public keys as `type base64`."""


class HostKeyChangedError(HostUnreachableError):
    """A server showed another key than the one that is pinned: maybe it is another machine."""


class HostKeys:
    """The host keys of one server, as one job trusts them.

    Args:
        worker: `details["host_keys"]` holds the allocator's word, a line a key.
        target: the server.
        job: whose directory keeps what was seen first.
    """

    def __init__(self, worker: Worker, target: Target, job: Job) -> None:
        provided = [
            " ".join(line.split()[:2]) for line in worker.details.get("host_keys", "").splitlines() if line.strip()
        ]
        self._provided = fastest_first(provided)
        self._worker = worker
        self._target = target
        self._job = job
        self.path = host_keys_dir(job) / re.sub(r"[^\w.-]", "_", f"{target.host}_{target.port}")

    def trusted(self) -> Keys:
        """The keys that it may show; none where it was never seen."""
        if self._provided:
            return self._provided
        try:
            lines = self.path.read_text().splitlines()
        except FileNotFoundError:
            return ()
        return tuple(line.partition(" ")[2] for line in lines)

    def trust(self, key: str) -> None:
        """Pin the key that it showed, if it is the first one.

        Raises:
            HostKeyChangedError: another process has seen another key just now.
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
        """Drop what was seen first, so that the next key is trusted; whether there was anything to drop."""
        try:
            self.path.unlink()
        except FileNotFoundError:
            return False
        return True

    def changed_error(self, shown: str) -> HostKeyChangedError:
        """What to say when it showed another key."""
        job, index = self._job.id, self._worker.index
        hint = f"if the machine was made anew on purpose: tpux ssh {job} --worker {index} --forget-host-key"
        if self._provided:
            hint = "the allocator says which key it has: this is another machine, or somebody is in between"
        return HostKeyChangedError(
            f"the host key of {self._target.known_hosts_name} has changed: it shows {fingerprint(shown)}, and"
            f" {' or '.join(map(fingerprint, self.trusted()))} is pinned",
            where=f"worker {index}",
            hint=hint,
        )


def host_keys_dir(job: Job) -> Path:
    """Where a job keeps the host keys that it has seen."""
    return job.directory / "ssh" / "host_keys"


def known_hosts_lines(names: Sequence[str], keys: Keys) -> str:
    """Lines of a known_hosts file, for a server that is called several names."""
    return "".join(f"{','.join(names)} {key}\n" for key in keys)


def fingerprint(key: str) -> str:
    """A key as OpenSSH shows it: `ED25519 SHA256:...`."""
    import base64
    import binascii
    import hashlib

    kind, _, data = key.partition(" ")
    try:
        digest = base64.b64encode(hashlib.sha256(base64.b64decode(data)).digest()).decode().rstrip("=")
    except binascii.Error:
        digest = "(no key)"
    return f"{kind.removeprefix('ssh-').upper()} SHA256:{digest}"
