"""Connections to a job's workers, and which workers do not answer."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from tpux.clock import ObservedTime
from tpux.errors import HostUnreachableError, TpuxError
from tpux.model.host import Host
from tpux.model.job import Job
from tpux.model.machines import Worker
from tpux.plugin.connect import GuardedHost, open_host
from tpux.plugin.guard import PluginError
from tpux.plugin.manager import Plugins
from tpux.remote.worker_calls import StepInterruptedError, WorkerCalls, WorkerThreads, interruption

R = TypeVar("R")
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Unreachable:
    """A worker that does not answer.

    Attributes:
        seconds: for how long that was observed.
        error: the last error.
        transport_failed: the transport's plugin failed, which says nothing about the worker.
        failing: it answers, but what it was asked to do fails.
    """

    seconds: float
    error: str
    transport_failed: bool = False
    failing: bool = False


class TransportFailedError(HostUnreachableError):
    """The transport's plugin failed. It is called again, without end; the worker is not taken for lost."""


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
        observed: counts for how long each worker does not answer.
        reached: the workers that have answered before.

    Attributes:
        unreachable: the workers that do not answer, by number.
        reached: the workers that have answered at least once since the machines were allocated.
        threads: the calls of workers that have not returned.
    """

    def __init__(
        self,
        connect: Callable[[Worker, threading.Event], Host],
        observed: ObservedTime,
        threads: WorkerThreads,
        reached: Iterable[int] = (),
    ) -> None:
        self._connect = connect
        self.threads = threads
        self._observed = observed
        self.reached = set(reached)
        self._hosts: dict[int, Host] = {}
        self.unreachable: dict[int, Unreachable] = {}
        self._interrupted = threading.Event()

    def calls(self, what: str) -> WorkerCalls[R]:
        """Return calls of the workers for one task; they end when the step under way is given up.

        Args:
            what: what a call does, for people.
        """
        return WorkerCalls(self.threads, self._interrupted, what)

    def interrupt(self) -> None:
        """Give up the step that another thread takes: its waits for workers end, since their connections are closed."""
        self._interrupted.set()
        self._close_in_background()

    def begin_step(self) -> None:
        """Undo `interrupt`. What belongs to the interrupted step cannot use a worker any more."""
        if self._interrupted.is_set():
            self._interrupted = threading.Event()

    def give_up_calls(self) -> None:
        """Give up the calls that have not returned: nobody waits for them any more."""
        if self.threads.busy():
            self._interrupted.set()
            self._close_in_background()
            self._interrupted = threading.Event()

    def _close_in_background(self) -> None:
        hosts, self._hosts = self._hosts, {}

        def close() -> None:
            for host in hosts.values():
                _close(host)

        if hosts:
            threading.Thread(target=close, daemon=True).start()  # closing may take a moment

    def host(self, worker: Worker) -> Host:
        """Return the connection to a worker; connect on first use.

        Raises:
            HostUnreachableError: it does not answer.
            StepInterruptedError: the step is given up.
        """
        interrupted, hosts = interruption() or self._interrupted, self._hosts
        if interrupted.is_set():
            raise StepInterruptedError
        if (host := hosts.get(worker.index)) is None:
            host = hosts[worker.index] = self._connect(worker, interrupted)
            if interrupted.is_set():
                _close(host)
                raise StepInterruptedError
        return host

    def mark_reachable(self, worker: Worker) -> None:
        """Record that a worker answered."""
        self.reached.add(worker.index)
        self.unreachable.pop(worker.index, None)
        self._observed.end(f"worker {worker.index} unreachable")

    def mark_unreachable(self, worker: Worker, error: TpuxError, retry_after: float) -> float:
        """Record that a worker did not answer, or failed to do what it was asked to, and close the connection.

        Args:
            worker: the worker.
            error: the error.
            retry_after: seconds until it is tried again.

        Returns:
            The seconds for which it was observed to be unreachable.
        """
        self.close(worker.index)
        seconds = self._observed.observe(f"worker {worker.index} unreachable", retry_after)
        failing, transport_failed = not isinstance(error, HostUnreachableError), isinstance(error, TransportFailedError)
        if failing:
            self.reached.add(worker.index)
        self.unreachable[worker.index] = Unreachable(seconds, error.message, transport_failed, failing)
        return seconds

    @property
    def transport_problem(self) -> str:
        """The message to the user while the transport's plugin fails; "" if it does not."""
        failed = ((index, lost.error) for index, lost in sorted(self.unreachable.items()) if lost.transport_failed)
        return next((f"worker {index}: {error}; retrying" for index, error in failed), "")

    def close(self, index: int) -> None:
        """Close the connection to a worker, if there is one."""
        if host := self._hosts.pop(index, None):
            _close(host)

    def close_all(self) -> None:
        """Close all connections, and forget which workers did not answer."""
        self.close_hosts()
        self.unreachable.clear()

    def close_hosts(self) -> None:
        """Close all connections."""
        for index in tuple(self._hosts):
            self.close(index)


def _close(host: Host) -> None:
    try:
        host.close()
    except (OSError, TpuxError):
        _log.debug("closing the connection to worker %d", host.worker.index, exc_info=True)
