"""Connections to a job's workers, and which workers do not answer."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tpux.clock import Clock
from tpux.errors import HostUnreachableError, TpuxError
from tpux.plugin.connect import GuardedHost, open_host
from tpux.plugin.guard import PluginError
from tpux.plugin.host import Host
from tpux.plugin.job import Job
from tpux.plugin.machines import Worker
from tpux.plugin.manager import Plugins

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Unreachable:
    """A worker that does not answer.

    Attributes:
        since: since when, by the monotonic clock.
        error: the last error.
        transport_failed: the transport's plugin failed, which says nothing about the worker.
    """

    since: float
    error: str
    transport_failed: bool = False


class TransportFailedError(HostUnreachableError):
    """The transport's plugin failed. It is called again, without end; the worker is not taken for lost."""


class StepInterruptedError(Exception):
    """The step was given up because the job is to be stopped. Nothing is wrong, and the next step follows at once."""


class _Connection(GuardedHost):
    """A connection whose plugin's exceptions, other than TpuxErrors and OSErrors, become `TransportFailedError`.

    Once the step is interrupted, every call but `close` raises `StepInterruptedError`.
    """

    def __init__(self, host: Host, plugins: Plugins, transport: str, interrupted: threading.Event | None) -> None:
        super().__init__(host, plugins, transport)
        self._interrupted = interrupted or threading.Event()

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        if self._interrupted.is_set():
            raise StepInterruptedError
        try:
            with super()._guarded():
                yield
        except (TpuxError, OSError) as error:
            if self._interrupted.is_set():
                raise StepInterruptedError from error
            if isinstance(error, PluginError):
                raise TransportFailedError(error.message) from error
            raise

    def close(self) -> None:
        with super()._guarded():
            self._host.close()


def connect(
    plugins: Plugins, transport: str, worker: Worker, job: Job, interrupted: threading.Event | None = None
) -> Host:
    """Connect to a worker.

    Args:
        plugins: the installed plugins.
        transport: the plugin that connects.
        worker: the worker.
        job: the job that it belongs to.
        interrupted: once it is set, calls of the host raise `StepInterruptedError`.

    Raises:
        HostUnreachableError: it does not answer.
        TransportFailedError: the transport's plugin failed.
    """
    try:
        host = open_host(plugins, transport, worker, job)
    except PluginError as error:
        raise TransportFailedError(error.message) from error
    return _Connection(host, plugins, transport, interrupted)


class Connections:
    """Open connections to a job's workers.

    Args:
        connect: connects to a worker.
        clock: the current time.

    Attributes:
        unreachable: the workers that do not answer, by number.
        interrupted: set while the step under way is given up.
    """

    def __init__(self, connect: Callable[[Worker], Host], clock: Clock) -> None:
        self._connect = connect
        self._clock = clock
        self._hosts: dict[int, Host] = {}
        self.unreachable: dict[int, Unreachable] = {}
        self.interrupted = threading.Event()

    def interrupt(self) -> None:
        """Give up the step that another thread takes: its waits for workers end, since their connections are closed."""
        self.interrupted.set()
        threading.Thread(target=self._close_hosts, daemon=True).start()  # closing may take a moment

    def host(self, worker: Worker) -> Host:
        """Return the connection to a worker; connect on first use.

        Raises:
            HostUnreachableError: it does not answer.
            StepInterruptedError: the job is to be stopped.
        """
        if self.interrupted.is_set():
            raise StepInterruptedError
        if (host := self._hosts.get(worker.index)) is None:
            host = self._hosts[worker.index] = self._connect(worker)
        return host

    def mark_reachable(self, worker: Worker) -> None:
        """Record that a worker answered."""
        self.unreachable.pop(worker.index, None)

    def mark_unreachable(self, worker: Worker, error: HostUnreachableError) -> float:
        """Record that a worker did not answer, and close the connection.

        Returns:
            Seconds since it was first unreachable; 0 the first time.
        """
        self.close(worker.index)
        now = self._clock.monotonic()
        before = self.unreachable.get(worker.index)
        since = before.since if before else now
        self.unreachable[worker.index] = Unreachable(since, str(error), isinstance(error, TransportFailedError))
        return now - since

    @property
    def transport_problem(self) -> str:
        """What the user is told while the transport's plugin fails; "" if it does not."""
        failed = ((index, lost.error) for index, lost in sorted(self.unreachable.items()) if lost.transport_failed)
        return next((f"worker {index}: {error}; retrying" for index, error in failed), "")

    def close(self, index: int) -> None:
        """Close the connection to a worker, if there is one."""
        if host := self._hosts.pop(index, None):
            try:
                host.close()
            except (OSError, TpuxError):
                _log.debug("closing the connection to worker %d", index, exc_info=True)

    def close_all(self) -> None:
        """Close all connections, and forget which workers did not answer."""
        self._close_hosts()
        self.unreachable.clear()

    def _close_hosts(self) -> None:
        for index in tuple(self._hosts):
            self.close(index)
