"""Where and as whom to log in to a worker."""

from __future__ import annotations

import getpass
from dataclasses import dataclass

from tpux import Job, TpuxError, Worker
from tpux_ssh.section import section_of

PORT = 22


@dataclass(frozen=True)
class Target:
    """One ssh server and a user on it.

    Attributes:
        host: its name or address.
        port: its port.
        user: whom to log in as.
    """

    host: str
    port: int
    user: str

    @property
    def known_hosts_name(self) -> str:
        """Its name in a known_hosts file (sshd(8), SSH_KNOWN_HOSTS FILE FORMAT)."""
        return self.host if self.port == PORT else f"[{self.host}]:{self.port}"

    def __str__(self) -> str:
        return f"{self.user}@{self.host}" + ("" if self.port == PORT else f":{self.port}")


def parse_address(address: str) -> tuple[str, str, int | None]:
    """User, host and port of `[user@]host[:port]`; a bare IPv6 address has colons and no port.

    Raises:
        ValueError: it is none of that.
    """
    user, _, place = address.rpartition("@")
    host, port = place, ""
    if place.startswith("["):
        host, bracket, port = place[1:].partition("]")
        if not bracket or (port and not port.startswith(":")):
            raise ValueError(f"{address!r} is no address: write [user@]host[:port]")
        port = port[1:]
    elif place.count(":") == 1:
        host, _, port = place.partition(":")
        if not port:
            raise ValueError(f"{address!r} has no port after the colon")
    # A name that begins with a dash would be an option to ssh.
    if not host or host.startswith("-") or user.startswith("-") or any(c.isspace() for c in address):
        raise ValueError(f"{address!r} is no address: write [user@]host[:port]")
    if port and not (port.isdecimal() and 0 < int(port) < 2**16):
        raise ValueError(f"{address!r} has no port between 1 and 65535")
    return user, host, int(port) if port else None


def target_of(worker: Worker, job: Job) -> Target:
    """Where a worker of a job is; what the allocator says counts more than the config.

    Raises:
        TpuxError: the worker's address is none.
    """
    try:
        user, host, port = parse_address(worker.address)
        told = int(worker.details["port"]) if worker.details.get("port") else None
    except ValueError as error:
        raise TpuxError(str(error), where=f"worker {worker.index}") from error
    return Target(
        host, port or told or section_of(job).port or PORT, user or worker.details.get("user") or login_user(job)
    )


def login_user(job: Job) -> str:
    """Whom a job logs in as where the allocator does not say."""
    return job.job.remote_user or getpass.getuser()
