"""The address of an SSH server with its login user, and how configs write it."""

from __future__ import annotations

from dataclasses import dataclass

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
