"""Opening a connection: fabric, set up as docs/ssh.md tells, and each way to fail in plain words."""

from __future__ import annotations

import logging
import socket
import threading
import time
from contextlib import suppress

from fabric import Config, Connection  # type: ignore[import-untyped]
from paramiko import MissingHostKeyPolicy, PKey, SSHClient, SSHException, Transport
from paramiko.config import SSHConfig
from paramiko.pkey import UnknownKeyType
from paramiko.ssh_exception import BadHostKeyException
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from tpux import HostUnreachableError, TpuxError
from tpux_ssh.login import Login, Refused
from tpux_ssh.pins import Pins
from tpux_ssh.target import Target

HANDSHAKES = threading.BoundedSemaphore(32)
"""Logins under way in this process at the most: more make each one slow, until some time out."""
KEEP_ALIVE = 15
"""Seconds of silence after which a connection asks whether the other end is there (and NAT keeps it open)."""
DEAD_AFTER = 45
"""Seconds after which what nobody has acknowledged ends a connection."""
# Cheap ones first; the others stay, for servers that insist. AES-GCM is its own MAC: half the calls a packet.
_FIRST = {
    "kex": ("curve25519-sha256@libssh.org", "ecdh-sha2-nistp256"),
    "ciphers": ("aes128-gcm@openssh.com", "aes128-ctr"),
    "key_types": ("ssh-ed25519", "ecdsa-sha2-nistp256"),
}

_paramiko = logging.getLogger("paramiko")
_paramiko.addHandler(logging.NullHandler())
if _paramiko.level == logging.NOTSET:  # it logs with a traceback what it raises as well
    _paramiko.setLevel(logging.CRITICAL)


class DroppedError(HostUnreachableError):
    """The server hung up while logging in, as sshd does when too many do so at once (`MaxStartups`)."""


def connect(target: Target, login: Login, pins: Pins, timeout: float) -> Connection:
    """Log in to a server whose key is the pinned one; an unknown server's first key is pinned.

    Args:
        target: the server.
        login: the keys to try.
        pins: the host keys to trust.
        timeout: seconds that each stage may take.

    Raises:
        HostUnreachableError: it could not be reached, or is not to be trusted, and why.
    """
    again = Retrying(
        retry=retry_if_exception_type(DroppedError),
        stop=stop_after_attempt(3),
        wait=wait_random_exponential(multiplier=0.5, max=4),
        reraise=True,
    )
    return again(_connect, target, login, pins, timeout)


def _connect(target: Target, login: Login, pins: Pins, timeout: float) -> Connection:
    try:
        sock = _dial(target, timeout)
    except OSError as error:
        raise HostUnreachableError(f"{target}: {_why(error, timeout)}", hint=_hint(error)) from error
    try:
        with HANDSHAKES:
            return _log_in(sock, target, login, pins, timeout)
    except BaseException:
        sock.close()
        raise


def _dial(target: Target, timeout: float) -> socket.socket:
    sock = socket.create_connection((target.host, target.port), timeout)
    # Or each command waits 40 ms for a delayed acknowledgement.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, DEAD_AFTER * 1000)
    return sock


def _log_in(sock: socket.socket, target: Target, login: Login, pins: Pins, timeout: float) -> Connection:
    connection = _connection(sock, target, login, timeout)
    client = connection.client
    client.set_missing_host_key_policy(_TrustTheFirst(pins))
    began = time.monotonic()
    try:
        for line in pins.trusted():
            client.get_host_keys().add(target.known_as, line.partition(" ")[0], _key(line))
        connection.open()
    except Exception as error:
        silent = time.monotonic() - began > timeout * 0.9
        _give_up(client.get_transport())
        raise _failure(error, target, pins, f"{timeout:g} s" if silent else "") from error
    connection.transport.set_keepalive(KEEP_ALIVE)
    # paramiko looks up ten times a second on each idle connection otherwise.
    sock.settimeout(5.0)
    return connection


def _connection(sock: socket.socket, target: Target, login: Login, timeout: float) -> Connection:
    return Connection(
        target.host,
        user=target.user,
        port=target.port,
        # One each, for a connection writes to its own; empty, or the user's ssh_config would be read each time.
        config=Config(ssh_config=SSHConfig()),
        connect_kwargs={
            "sock": sock,
            "timeout": timeout,
            "banner_timeout": timeout,
            "auth_timeout": timeout,
            "transport_factory": _transport,
            "auth_strategy": login,
        },
    )


def hang_up(connection: Connection) -> None:
    """Close a connection now."""
    if (transport := connection.transport) is not None and transport.is_active():
        # Its thread may wait in recv; closed under its hands, the descriptor could be another's when it wakes.
        with suppress(OSError):  # the other end was faster
            transport.sock.shutdown(socket.SHUT_RDWR)
        transport.join(1.0)
    connection.close()


def _give_up(transport: Transport | None) -> None:
    if transport is not None:
        transport.packetizer.complete_handshake()  # ends a timer that would hold up the end of the process
        transport.close()


def _failure(error: Exception, target: Target, pins: Pins, silence: str) -> Exception:
    """What a failed login means, in plain words."""
    if isinstance(error, HostUnreachableError):
        return error
    if isinstance(error, BadHostKeyException):
        return pins.changed(_text(error.key))
    if isinstance(error, TpuxError):
        return HostUnreachableError(f"{target}: {error.message}", where=error.where, hint=error.hint)
    if isinstance(error, Refused):
        return _refused(target, error)
    if not isinstance(error, (SSHException, EOFError, OSError)):
        return error
    if silence:
        return HostUnreachableError(
            f"{target}: it took the connection and then said nothing for {silence}",
            hint="the machine may hang, or something else listens there",
        )
    return DroppedError(f"{target}: the connection broke while logging in: {str(error) or 'it was closed'}")


class _TrustTheFirst(MissingHostKeyPolicy):
    def __init__(self, pins: Pins) -> None:
        self._pins = pins

    def missing_host_key(self, client: SSHClient, hostname: str, key: PKey) -> None:  # noqa: ARG002
        self._pins.trust(_text(key))


def _transport(sock: socket.socket, **options: object) -> Transport:
    del options  # SSHClient's, none of which tpux sets
    transport = Transport(sock)
    security = transport.get_security_options()
    for kind, first in _FIRST.items():
        offered: tuple[str, ...] = getattr(security, kind)
        preferred = [name for name in first if name in offered]
        setattr(security, kind, [*preferred, *(name for name in offered if name not in preferred)])
    return transport


def _key(line: str) -> PKey:
    import base64

    kind, _, data = line.partition(" ")
    try:
        return PKey.from_type_string(kind, base64.b64decode(data))
    except (UnknownKeyType, SSHException, ValueError) as error:
        raise TpuxError(f"the pinned host key {kind} cannot be read: {error}") from error


def _text(key: PKey) -> str:
    return f"{key.get_name()} {key.get_base64()}"


def _refused(target: Target, error: Refused) -> HostUnreachableError:
    tried = ", ".join(map(str, error.tried))
    command = f"ssh-copy-id -f -i {error.tried[0]}.pub -p {target.port} {target.user}@{target.host}"
    return HostUnreachableError(
        f"{target}: it takes none of the keys {tried}",
        hint=f"let one in ({command}), or name yours in ssh.private_key; job.remote_user says who logs in",
    )


def _why(error: OSError, timeout: float) -> str:
    if isinstance(error, socket.gaierror):
        return "no machine of that name is known"
    if isinstance(error, TimeoutError):
        return f"no answer within {timeout:g} s"
    if isinstance(error, ConnectionRefusedError):
        return "connection refused: no ssh server listens there"
    return error.strerror or str(error)


def _hint(error: OSError) -> str:
    return "see that the name is spelt right" if isinstance(error, socket.gaierror) else ""
