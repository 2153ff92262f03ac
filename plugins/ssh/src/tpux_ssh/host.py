"""`SshHost`: commands and files on a worker, over one SSH connection that is kept open."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tpux import HostUnreachableError, Job, TpuxError, Worker
from tpux_ssh.address import Target
from tpux_ssh.host_keys import HostKeys
from tpux_ssh.keyfiles import login_keys
from tpux_ssh.section import section_of
from tpux_ssh.target import iap_command, jump_target, resolved, target_of
from tpux_worker_tools.relay import RelayHost, Shell

if TYPE_CHECKING:
    from fabric import Connection  # type: ignore[import-untyped]

    from tpux_ssh.routes import Route, RouteStream
    from tpux_ssh.shell import ShellChannel


class SshHost(RelayHost):
    """A worker reached over SSH: one connection and one shell on it, each opened at first use.

    Args:
        worker: `address` is `[user@]host[:port]`; `details` may have `port`, `user` and `host_keys`.
        job: the job that the worker belongs to.
    """

    def __init__(self, worker: Worker, job: Job) -> None:
        super().__init__(worker, 0.0)  # a channel is open before its shell is used
        self._job = job
        self._target = target_of(worker, job)
        self._section = section_of(job)
        self._connection: Connection | None = None
        self._route: Route | None = None

    def open(self) -> None:
        """Connect and log in, unless already connected. A connection that is known to have ended is opened anew.

        Raises:
            HostUnreachableError: the worker is unreachable, or presented an untrusted host key.
        """
        if self._connection is not None and not self._connection.transport.is_active():
            self.close()
        if self._connection is None:
            try:
                self._route = self._choose_route()
                self._connection = self._log_in(self._target, self._route)
            except HostUnreachableError as error:
                error.where = error.where or f"worker {self.worker.index}"
                raise

    def _log_in(self, target: Target, route: Route | None = None, *, jump: bool = False) -> Connection:
        from tpux_ssh.connection import connect

        host_keys = HostKeys(self.worker, target, self._job, jump=jump)
        keys = login_keys(self._section.login_key, Path(resolved(self._job, "keys")))
        timeout = self._section.connect_timeout

        def log_in(stream: RouteStream) -> Connection:
            from tpux_ssh import login  # while the server begins to answer

            return login.log_in(stream, target, keys, host_keys, timeout)

        return connect(target, log_in, timeout, route)

    def _choose_route(self) -> Route:
        from tpux_ssh.routes import DirectRoute, JumpRoute, TunnelRoute

        if self._section.iap:
            return TunnelRoute(iap_command(self.worker, self._job, str(self._target.port)))
        if (jump := jump_target(self._job)) is not None:
            return JumpRoute(jump, self._job.directory, lambda: self._log_in(jump, jump=True))
        return DirectRoute()

    def connect(self, window: int | None = None) -> ShellChannel:
        """Open a channel with a shell, and the connection before that, unless it is open."""
        from tpux_ssh.shell import WINDOW, ShellChannel

        self.open()
        if self._connection is None:
            raise EOFError
        return ShellChannel(self._connection.transport, window or WINDOW, self._section.connect_timeout)

    def follow(self, script: str, listen: Callable[[bytes], None], *, stdin: bytes = b"", timeout: float = 60.0) -> int:
        """Run a script on a channel of its own, which waits for a listener that is slow."""
        from tpux_ssh.shell import FOLLOW_WINDOW, SHORT_INPUT

        with self.close_on_error(timeout):
            shell = Shell(self.connect(FOLLOW_WINDOW if len(stdin) <= SHORT_INPUT else None), self.opening)
            try:
                return shell.run(script, listen, (stdin,), len(stdin), timeout=timeout)
            finally:
                shell.close()

    def stream(self, script: str) -> Shell:
        """Start a script on a channel of its own, and return its output as it arrives.

        Raises:
            TpuxError: the server opens no further channel; the connection stays open.
            HostUnreachableError: the connection was lost.
        """
        from tpux_ssh.shell import RefusedError

        try:
            return super().stream(script)
        except HostUnreachableError as error:
            if not isinstance(error.__cause__, RefusedError):
                raise
            text = f"{self._target}: the server opens no further channel: {error.__cause__}"
            hint = "MaxSessions of its sshd_config may limit their number"
            refused = TpuxError(text, where=f"worker {self.worker.index}", hint=hint)
        raise refused

    def close(self) -> None:
        """Close the connection."""
        connection, self._connection, self._shell = self._connection, None, None
        route, self._route = self._route, None
        if connection is not None:
            from tpux_ssh.login import close

            close(connection)
        if route is not None:
            route.close()

    def unreachable(self, message: str) -> HostUnreachableError:
        """Return the error that names the worker, with what the server has said."""
        said = ""
        if self._connection is not None:
            from tpux_ssh.server_text import it_said

            said = it_said(self._connection.transport)
        return HostUnreachableError(f"{self._target}: {message}{said}", where=f"worker {self.worker.index}")
