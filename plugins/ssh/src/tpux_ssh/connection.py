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
from tpux_ssh.algorithms import prefer_fast
from tpux_ssh.authentication import KeyAuth, KeysRejectedError
from tpux_ssh.host_keys import HostKeys
from tpux_ssh.target import Target

HANDSHAKE_SLOTS = threading.BoundedSemaphore(32)
"""Logins under way in this process at the most: more make each one slow, until some time out."""
KEEPALIVE_INTERVAL = 15
"""Seconds of silence after which a connection asks whether the other end is there (and NAT keeps it open)."""
ACK_TIMEOUT = 45
"""Seconds after which what nobody has acknowledged ends a connection."""

_paramiko = logging.getLogger("paramiko")
_paramiko.addHandler(logging.NullHandler())
if _paramiko.level == logging.NOTSET:  # it logs with a traceback what it raises as well
    _paramiko.setLevel(logging.CRITICAL)


class HandshakeDroppedError(HostUnreachableError):
    """The server hung up while logging in, as sshd does when too many do so at once (`MaxStartups`)."""


def connect(target: Target, auth: KeyAuth, host_keys: HostKeys, timeout: float) -> Connection:
    """Log in to a server whose key is the pinned one; an unknown server's first key is pinned.

    Args:
        target: the server.
        auth: the keys to try.
        host_keys: the host keys to trust.
        timeout: seconds that each stage may take.

    Raises:
        HostUnreachableError: it could not be reached, or is not to be trusted, and why.
    """
    again = Retrying(
        retry=retry_if_exception_type(HandshakeDroppedError),
        stop=stop_after_attempt(3),
        wait=wait_random_exponential(multiplier=0.5, max=4),
        reraise=True,
    )
    return again(_connect, target, auth, host_keys, timeout)


def _connect(target: Target, auth: KeyAuth, host_keys: HostKeys, timeout: float) -> Connection:
    try:
        sock = _open_socket(target, timeout)
    except OSError as error:
        raise HostUnreachableError(f"{target}: {_describe(error, timeout)}", hint=_hint(error)) from error
    try:
        with HANDSHAKE_SLOTS:
            return _log_in(sock, target, auth, host_keys, timeout)
    except BaseException:
        sock.close()
        raise


def _open_socket(target: Target, timeout: float) -> socket.socket:
    sock = socket.create_connection((target.host, target.port), timeout)
    # Or each command waits 40 ms for a delayed acknowledgement.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, ACK_TIMEOUT * 1000)
    return sock


def _log_in(sock: socket.socket, target: Target, auth: KeyAuth, host_keys: HostKeys, timeout: float) -> Connection:
    connection = _connection(sock, target, auth, timeout)
    client = connection.client
    client.set_missing_host_key_policy(_TrustOnFirstUse(host_keys))
    began = time.monotonic()
    try:
        for line in host_keys.trusted():
            client.get_host_keys().add(target.known_hosts_name, line.partition(" ")[0], _parse_key(line))
        connection.open()
    except Exception as error:
        silent = time.monotonic() - began > timeout * 0.9
        _abort(client.get_transport())
        raise _login_error(error, target, host_keys, f"{timeout:g} s" if silent else "") from error
    connection.transport.set_keepalive(KEEPALIVE_INTERVAL)
    # paramiko looks up ten times a second on each idle connection otherwise.
    sock.settimeout(5.0)
    return connection


def _connection(sock: socket.socket, target: Target, auth: KeyAuth, timeout: float) -> Connection:
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
            "auth_strategy": auth,
        },
    )


def close(connection: Connection) -> None:
    """Close a connection now."""
    if (transport := connection.transport) is not None and transport.is_active():
        # Its thread may wait in recv; closed under its hands, the descriptor could be another's when it wakes.
        with suppress(OSError):  # the other end was faster
            transport.sock.shutdown(socket.SHUT_RDWR)
        transport.join(1.0)
    connection.close()


def _abort(transport: Transport | None) -> None:
    if transport is not None:
        transport.packetizer.complete_handshake()  # ends a timer that would hold up the end of the process
        transport.close()


def _login_error(error: Exception, target: Target, host_keys: HostKeys, silence: str) -> Exception:
    """What a failed login means, in plain words."""
    if isinstance(error, HostUnreachableError):
        return error
    if isinstance(error, BadHostKeyException):
        return host_keys.changed_error(_format_key(error.key))
    if isinstance(error, TpuxError):
        return HostUnreachableError(f"{target}: {error.message}", where=error.where, hint=error.hint)
    if isinstance(error, KeysRejectedError):
        return _refused(target, error)
    if not isinstance(error, (SSHException, EOFError, OSError)):
        return error
    if silence:
        return HostUnreachableError(
            f"{target}: it took the connection and then said nothing for {silence}",
            hint="the machine may hang, or something else listens there",
        )
    return HandshakeDroppedError(f"{target}: the connection broke while logging in: {str(error) or 'it was closed'}")


class _TrustOnFirstUse(MissingHostKeyPolicy):
    def __init__(self, host_keys: HostKeys) -> None:
        self._host_keys = host_keys

    def missing_host_key(self, client: SSHClient, hostname: str, key: PKey) -> None:  # noqa: ARG002
        self._host_keys.trust(_format_key(key))


def _transport(sock: socket.socket, **options: object) -> Transport:
    del options  # SSHClient's, none of which tpux sets
    transport = Transport(sock)
    prefer_fast(transport)
    return transport


def _parse_key(line: str) -> PKey:
    import base64

    kind, _, data = line.partition(" ")
    try:
        return PKey.from_type_string(kind, base64.b64decode(data))
    except (UnknownKeyType, SSHException, ValueError) as error:
        raise TpuxError(f"the pinned host key {kind} cannot be read: {error}") from error


def _format_key(key: PKey) -> str:
    return f"{key.get_name()} {key.get_base64()}"


def _refused(target: Target, error: KeysRejectedError) -> HostUnreachableError:
    tried = ", ".join(map(str, error.tried))
    command = f"ssh-copy-id -f -i {error.tried[0]}.pub -p {target.port} {target.user}@{target.host}"
    return HostUnreachableError(
        f"{target}: it takes none of the keys {tried}",
        hint=f"let one in ({command}), or name yours in ssh.private_key; job.remote_user says who logs in",
    )


def _describe(error: OSError, timeout: float) -> str:
    if isinstance(error, socket.gaierror):
        return "no machine of that name is known"
    if isinstance(error, TimeoutError):
        return f"no answer within {timeout:g} s"
    if isinstance(error, ConnectionRefusedError):
        return "connection refused: no ssh server listens there"
    return error.strerror or str(error)


def _hint(error: OSError) -> str:
    return "see that the name is spelt right" if isinstance(error, socket.gaierror) else ""
