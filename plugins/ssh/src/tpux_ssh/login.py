"""Log in over an open connection to an SSH server (fabric), and translate every failure into a message for the user."""

from __future__ import annotations

import logging
import select
import socket
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from weakref import WeakValueDictionary

from fabric import Config, Connection  # type: ignore[import-untyped]
from paramiko import MissingHostKeyPolicy, PKey, SSHClient, SSHException, Transport
from paramiko.config import SSHConfig
from paramiko.pkey import UnknownKeyType
from paramiko.ssh_exception import BadHostKeyException

from tpux import HostUnreachableError, TpuxError, plain_reason
from tpux_ssh.address import Target
from tpux_ssh.algorithms import set_preferred_order
from tpux_ssh.authentication import KeyAuth, KeysRejectedError
from tpux_ssh.connection import HandshakeDroppedError
from tpux_ssh.host_keys import HostKeys
from tpux_ssh.plain_text import printable
from tpux_ssh.routes import RouteStream
from tpux_ssh.server_text import ListeningPacketizer, it_said

HANDSHAKE_SLOTS = threading.BoundedSemaphore(32)
"""Limits concurrent logins in this process: with more, each is slower, until some time out."""
SLOTS_OF_A_JOB = 16
"""Limits the concurrent logins of one job, so that machines of it that do not answer leave some to other jobs."""
KEEPALIVE_INTERVAL = 15
"""Seconds between keepalive messages, which also keep NAT entries alive."""

_paramiko = logging.getLogger("paramiko")
_paramiko.addHandler(logging.NullHandler())
if _paramiko.level == logging.NOTSET:  # paramiko logs a traceback for every exception that it raises
    _paramiko.setLevel(logging.CRITICAL)


def log_in(sock: RouteStream, target: Target, keys: Sequence[Path], host_keys: HostKeys, timeout: float) -> Connection:
    """Log in to a server with the first key that it accepts. Its host key is stored if the server is unknown.

    Args:
        sock: the connection to the server; the caller closes it after an error.
        target: the server.
        keys: the private key files, most likely first.
        host_keys: the trusted host keys.
        timeout: seconds for each step: banner, authentication.

    Raises:
        HostUnreachableError: the login failed, or the server presented an untrusted host key.
    """
    _await_banner(sock, target, timeout)
    with _slots_of(host_keys.job_key), HANDSHAKE_SLOTS:
        return _log_in(sock, target, KeyAuth(target.user, [*keys]), host_keys, timeout)


_job_slots: WeakValueDictionary[str, threading.Semaphore] = WeakValueDictionary()
_job_slots_lock = threading.Lock()


def _slots_of(job: str) -> threading.Semaphore:
    with _job_slots_lock:
        if (slots := _job_slots.get(job)) is None:
            slots = _job_slots[job] = threading.Semaphore(SLOTS_OF_A_JOB)
        return slots


def _await_banner(stream: RouteStream, target: Target, timeout: float) -> None:
    """Wait until the server has sent something or closed the connection: a silent server takes no slot.

    Raises:
        HostUnreachableError: it does neither.
    """
    if isinstance(stream, socket.socket):
        poll = select.poll()
        poll.register(stream, select.POLLIN)
        if not poll.poll(timeout * 1000):
            raise _silent(target, timeout)


def _log_in(sock: RouteStream, target: Target, auth: KeyAuth, host_keys: HostKeys, timeout: float) -> Connection:
    connection = _connection(sock, target, auth, timeout)
    client = connection.client
    client.set_missing_host_key_policy(_TrustOnFirstUse(host_keys))
    began = time.monotonic()
    try:
        for line in host_keys.trusted():
            client.get_host_keys().add(target.known_hosts_name, line.partition(" ")[0], _parse_key(line))
        connection.open()
    except Exception as error:
        timed_out = time.monotonic() - began > timeout * 0.9
        said = it_said(client.get_transport())
        _abort(client.get_transport())
        raise _login_error(error, target, host_keys, timeout if timed_out else None, said) from error
    connection.transport.set_keepalive(KEEPALIVE_INTERVAL)
    # With paramiko's default, an idle connection wakes up ten times a second.
    sock.settimeout(5.0)
    return connection


def _connection(sock: RouteStream, target: Target, auth: KeyAuth, timeout: float) -> Connection:
    return Connection(
        target.host,
        user=target.user,
        port=target.port,
        # Not shared, because Connection modifies it. An explicit SSHConfig keeps fabric from reading ~/.ssh/config.
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
    """Close a connection without waiting for the server."""
    if (transport := connection.transport) is not None and transport.is_active():
        # Wakes paramiko's thread from recv before the descriptor is closed and possibly reused.
        with suppress(OSError):  # already closed by the server
            transport.sock.shutdown(socket.SHUT_RDWR)
        transport.join(1.0)
    connection.close()


def _abort(transport: Transport | None) -> None:
    if transport is not None:
        transport.packetizer.complete_handshake()  # stops a timer thread that would delay process exit
        transport.close()


def _login_error(
    error: Exception, target: Target, host_keys: HostKeys, timeout: float | None, said: str = ""
) -> Exception:
    """Return the exception to raise for a failed login; `timeout` is the number of seconds if it timed out.

    Args:
        error: what the SSH library has raised.
        target: the worker, or the jump host.
        host_keys: the keys that were expected.
        timeout: of the login in seconds, if it timed out; else None.
        said: what the server has said, as `it_said` returns it.
    """
    if isinstance(error, HostUnreachableError):
        return error
    if isinstance(error, BadHostKeyException):
        return host_keys.changed_error(_format_key(error.key))
    if isinstance(error, TpuxError):
        return HostUnreachableError(f"{target}: {error.message}", where=error.where, hint=error.hint)
    if isinstance(error, KeysRejectedError):
        return _rejected(target, error, said)
    if not isinstance(error, (SSHException, EOFError, OSError)):
        return error
    if timeout is not None:
        return _silent(target, timeout, said)
    return HandshakeDroppedError(f"{target}: connection lost during login: {_reason(error)}{said}")


def _reason(error: Exception) -> str:
    """Return why a login ended, without what the server has sent: `it_said` has that."""
    text = str(error)
    if not text or text.startswith("Error reading SSH protocol banner"):
        return "closed by the server"
    if text.startswith("Indecipherable protocol version"):
        return "the server did not send an SSH version"
    return printable(plain_reason(error))


def _silent(target: Target, timeout: float, said: str = "") -> HostUnreachableError:
    return HostUnreachableError(
        f"{target}: connected, but the SSH server did not respond for {timeout:g} s{said}",
        hint="the machine may be hung, or another service listens on this port",
    )


class _TrustOnFirstUse(MissingHostKeyPolicy):
    def __init__(self, host_keys: HostKeys) -> None:
        self._host_keys = host_keys

    def missing_host_key(self, client: SSHClient, hostname: str, key: PKey) -> None:  # noqa: ARG002
        self._host_keys.trust(_format_key(key))


def _transport(sock: socket.socket, **options: object) -> Transport:
    del options  # SSHClient passes options that tpux does not use
    transport = Transport(sock, packetizer_class=ListeningPacketizer)
    set_preferred_order(transport)
    return transport


def _parse_key(line: str) -> PKey:
    import base64

    kind, _, data = line.partition(" ")
    try:
        return PKey.from_type_string(kind, base64.b64decode(data))
    except (UnknownKeyType, SSHException, ValueError) as error:
        raise TpuxError(f"invalid stored host key of type {kind}: {error}") from error


def _format_key(key: PKey) -> str:
    return f"{key.get_name()} {key.get_base64()}"


def _rejected(target: Target, error: KeysRejectedError, said: str) -> HostUnreachableError:
    tried = ", ".join(map(str, error.tried))
    command = f"ssh-copy-id -f -i {error.tried[0]}.pub -p {target.port} {target.user}@{target.host}"
    return HostUnreachableError(
        f"{target}: the server rejected the keys {tried}{said}",
        hint=f"authorize one ({command}), or set ssh.private_key; the login user is job.remote_user",
    )
