"""The address, port and user of a worker's SSH login."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tpux import Job, TpuxError, Worker
from tpux_ssh.section import section_of

PORT = 22


@dataclass(frozen=True)
class Target:
    """An SSH server and a login user.

    Attributes:
        host: host name or IP address.
        port: TCP port of the server.
        user: login user.
    """

    host: str
    port: int
    user: str

    @property
    def known_hosts_name(self) -> str:
        """The server's name in a known_hosts file, as sshd(8) defines it under SSH_KNOWN_HOSTS FILE FORMAT."""
        return self.host if self.port == PORT else f"[{self.host}]:{self.port}"

    def __str__(self) -> str:
        return f"{self.user}@{self.host}" + ("" if self.port == PORT else f":{self.port}")


def parse_address(address: str) -> tuple[str, str, int | None]:
    """Parse `[user@]host[:port]`. An IPv6 address with a port needs brackets.

    Returns:
        User ('' if absent), host, and port (None if absent).

    Raises:
        ValueError: the address is invalid.
    """
    user, _, location = address.rpartition("@")
    host, port = location, ""
    if location.startswith("["):
        host, bracket, port = location[1:].partition("]")
        if not bracket or (port and not port.startswith(":")):
            raise ValueError(f"invalid address {address!r}: expected [user@]host[:port]")
        port = port[1:]
    elif location.count(":") == 1:
        host, _, port = location.partition(":")
        if not port:
            raise ValueError(f"invalid address {address!r}: no port after the colon")
    # ssh would parse a host or user that begins with a dash as an option.
    if not host or host.startswith("-") or user.startswith("-") or any(c.isspace() for c in address):
        raise ValueError(f"invalid address {address!r}: expected [user@]host[:port]")
    if port and not (port.isdecimal() and 0 < int(port) < 2**16):
        raise ValueError(f"invalid address {address!r}: the port must be between 1 and 65535")
    return user, host, int(port) if port else None


def target_of(worker: Worker, job: Job) -> Target:
    """Return the login target of a worker. Values from the allocator override the config.

    Raises:
        TpuxError: the worker's address is invalid.
    """
    try:
        user, host, port = parse_address(worker.address)
        provided = int(worker.details["port"]) if worker.details.get("port") else None
    except ValueError as error:
        raise TpuxError(str(error), where=f"worker {worker.index}") from error
    return Target(
        host, port or provided or section_of(job).port or PORT, user or worker.details.get("user") or login_user(job)
    )


def login_user(job: Job) -> str:
    """Return the login user: `job.remote_user`, the one that the allocator's `resolve` found, or the local one.

    Raises:
        TpuxError: as `resolved` does.
    """
    found = job.resolved.get(job.tpu.allocation_mode, {}).get("login_user")
    return job.job.remote_user or str(found or "") or resolved(job, "user")


def resolved(job: Job, key: Literal["user", "keys"]) -> str:
    """Return what `resolve` found when the job was created.

    Raises:
        TpuxError: it was not called.
    """
    try:
        return str(job.resolved["ssh"][key])
    except KeyError as error:
        allocator = job.tpu.allocation_mode
        message = f"the allocator {allocator} uses the transport ssh, and its tpu_section does not declare it"
        raise TpuxError(message, hint=f"a bug in the plugin {allocator}: report it to its authors") from error
