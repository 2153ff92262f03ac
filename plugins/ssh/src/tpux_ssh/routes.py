"""How the connection to a worker's SSH server is opened: directly, through a jump host, or through Google's IAP."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Protocol, TypeAlias

from tpux import HostUnreachableError, plain_reason
from tpux_ssh.address import Target
from tpux_ssh.plain_text import printable

if TYPE_CHECKING:
    from fabric import Connection  # type: ignore[import-untyped]
    from paramiko import Channel

ACK_TIMEOUT = 45
"""Seconds after which unacknowledged data closes the connection (tcp(7), TCP_USER_TIMEOUT)."""

RouteStream: TypeAlias = "socket.socket | Channel"


class Route(Protocol):
    """A way to a worker's SSH server, for one connection at a time."""

    def open(self, target: Target, timeout: float) -> RouteStream:
        """Connect to the server; the caller closes the stream.

        Args:
            target: the server.
            timeout: in seconds.

        Raises:
            HostUnreachableError: something on the way does not answer.
            OSError: the server cannot be reached.
        """

    def problem(self) -> str:
        """Return what the programs on the way have reported; "" if there is nothing."""

    def close(self) -> None:
        """Give up what the last stream needed; nothing if none was opened."""


class DirectRoute:
    """A TCP connection."""

    def open(self, target: Target, timeout: float) -> RouteStream:
        """Connect to the server; see `Route.open`."""
        sock = socket.create_connection((target.host, target.port), timeout)
        # Without it each command waits 40 ms for a delayed acknowledgement.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, ACK_TIMEOUT * 1000)
        return sock

    def problem(self) -> str:
        """Return ""."""
        return ""

    def close(self) -> None:
        """Do nothing: the connection is the stream itself."""


class JumpRoute:
    """A channel of the connection to a jump host, as with `ssh -J`.

    Args:
        jump: the jump host and the user on it.
        job: the job's directory.
        log_in: opens a connection to the jump host.
    """

    def __init__(self, jump: Target, job: Path, log_in: Callable[[], Connection]) -> None:
        self._jump = jump
        self._key = (jump, job)
        self._log_in = log_in
        self._login: Future[Connection] | None = None

    def open(self, target: Target, timeout: float) -> RouteStream:
        """Connect to the server from the jump host; see `Route.open`.

        Raises:
            HostUnreachableError: the jump host cannot be reached, or cannot reach the server.
        """
        from fabric import Config, Connection
        from paramiko import ChannelException, SSHException
        from paramiko.config import SSHConfig

        self.close()
        self._login = _jump_hosts.join(self._key, self._log_in)
        try:
            jump_host = self._login.result()
            jump_host.transport.channel_timeout = timeout  # paramiko's default is an hour
            # An explicit SSHConfig keeps fabric from reading ~/.ssh/config.
            behind = Connection(target.host, port=target.port, gateway=jump_host, config=Config(ssh_config=SSHConfig()))
            channel: Channel = behind.open_gateway()
        except HostUnreachableError as error:  # not a HostIdentityError: no allocator knows the jump host's key
            raise HostUnreachableError(f"jump host: {error.message}", hint=error.hint) from error
        except ChannelException as error:
            hint = "the jump host must allow TCP forwarding (AllowTcpForwarding)" if error.code == 1 else ""
            raise HostUnreachableError(f"{target}: jump host {self._jump}: {error.text}", hint=hint) from error
        except (SSHException, EOFError) as error:
            reason = plain_reason(error) if str(error) else "connection lost"
            raise HostUnreachableError(f"{target}: jump host {self._jump}: {reason}") from error
        return channel

    def problem(self) -> str:
        """Return ""."""
        return ""

    def close(self) -> None:
        """Close the connection to the jump host if no other worker uses it."""
        login, self._login = self._login, None
        if login is not None:
            _jump_hosts.leave(login)


class _SharedConnections:
    """Connections to jump hosts, each shared by all workers behind it.

    sshd limits logins (`MaxStartups`) and not the channels of one connection. The first worker logs in; the
    others wait, and if it fails, it has failed for all of them.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._logins: dict[tuple[Target, Path], Future[Connection]] = {}
        self._users: Counter[Future[Connection]] = Counter()

    def join(self, key: tuple[Target, Path], log_in: Callable[[], Connection]) -> Future[Connection]:
        """Return the login of a jump host; log in if there is none, or if its connection is lost."""
        with self._lock:
            login = self._logins.get(key)
            is_first = login is None or not _usable(login)
            if login is None or is_first:
                login = self._logins[key] = Future()
            self._users[login] += 1
        if is_first:
            try:
                login.set_result(log_in())
            except BaseException as error:  # noqa: BLE001  (`Future.result` raises it, here and for those that wait)
                login.set_exception(error)
        return login

    def leave(self, login: Future[Connection]) -> None:
        """Close the connection if this was its last user."""
        with self._lock:
            self._users[login] -= 1
            if self._users[login]:
                return
            del self._users[login]
            self._logins = {key: each for key, each in self._logins.items() if each is not login}
        if login.exception() is None:
            login.result().close()


_jump_hosts = _SharedConnections()


def _usable(login: Future[Connection]) -> bool:
    """Return False once a login has failed, or its connection is lost."""
    if not login.done():
        return True
    return login.exception() is None and bool(login.result().is_connected)


class TunnelRoute:
    """A program that forwards its standard input and output, such as `gcloud compute start-iap-tunnel`.

    Args:
        command: its argument vector.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self._command = list(command)
        self._process: subprocess.Popen[bytes] | None = None
        self._errors: IO[bytes] | None = None

    def open(self, target: Target, timeout: float) -> RouteStream:  # noqa: ARG002  (the program has its own)
        """Start the program; see `Route.open`.

        Raises:
            HostUnreachableError: it cannot be started.
        """
        self.close()
        ours, theirs = socket.socketpair()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  (closed by `close`)
        try:
            with theirs:
                # Not with invoke, as other local tools: it would decode this stream of bytes.
                self._process = subprocess.Popen(
                    self._command,
                    stdin=theirs.fileno(),
                    stdout=theirs.fileno(),
                    stderr=self._errors,
                    start_new_session=True,
                )
        except OSError as error:
            ours.close()
            raise HostUnreachableError(f"cannot run {self._command[0]}: {error.strerror}") from error
        return ours

    def problem(self) -> str:
        """Return the last line that the program wrote to its standard error."""
        if self._errors is None:
            return ""
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").split("\n")
        return next((text for line in reversed(lines) if (text := printable(line))), "")

    def close(self) -> None:
        """End the program with all its processes."""
        process, self._process = self._process, None
        errors, self._errors = self._errors, None
        if process is not None:
            with suppress(ProcessLookupError, PermissionError):  # it has ended
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if errors is not None:
            errors.close()
