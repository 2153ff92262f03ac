"""The workers of a job: the open connections, which workers do not answer, and for how long."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from tpux import descriptors, threads
from tpux.clock import Clock, ObservedTime
from tpux.errors import HostUnreachableError, TpuxError
from tpux.model.host import OpenHost
from tpux.model.machines import Worker
from tpux.remote.calls import StepInterruptedError, WorkerCalls, WorkerThreads, interruption
from tpux.remote.connections import TransportFailedError
from tpux.store.timers import Timers

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


@dataclass(frozen=True)
class Patience:
    """How long a worker is waited for that does not answer.

    Attributes:
        lost_after: seconds of observed time after which a task on it is given up.
        one_try: the machines are deleted next, so each worker is tried once.
        unreachable_once: the job is deleted: a worker is given up that does not answer a new connection.
        unreached_once: the same for a worker that has never answered: nothing was started there.
        waits_for_transport: while the transport's plugin fails there is no limit; not while processes are ended.
    """

    lost_after: float = 300.0
    one_try: bool = False
    unreachable_once: bool = False
    unreached_once: bool = False
    waits_for_transport: bool = True

    def is_over(self, *, tries: int, was_reached: bool) -> bool:
        """Return whether a worker is given up that has not answered so many tries in a row; the first may be stale."""
        return self.one_try or (self.unreachable_once and tries > 1) or (self.unreached_once and not was_reached)


@dataclass(frozen=True)
class Scope:
    """What names the runs of a job's steps on its workers, and where their output is stored.

    Attributes:
        key: `Job.key`.
        attempt: the current attempt; the steps are for the next one.
        round: the round of set-up.
        logs: the directory of the job's logs.
    """

    key: str
    attempt: int
    round: int
    logs: Path


class Workers:
    """The workers of a job. All of it may be lost: what a later supervisor must know is saved in `timers.json`.

    Args:
        connect: connects to a worker; once the event is set, calls of the host raise `StepInterruptedError`.
        clock: the current time.
        timers: what an earlier supervisor has saved.

    Attributes:
        unreachable: the workers that do not answer, by number.
        reached: the workers that have answered at least once since the machines were allocated.
        observed: for how long conditions were observed to last, such as that a worker is unreachable.
        threads: the calls of workers that have not returned.
        patience: how long a worker is waited for.
        scope: what names the runs of steps; set before any task begins.
        changed: workers that their allocator describes differently by now, as connecting has shown.
        ending: the job ends, for which a connection may be opened when there are few descriptors left.
    """

    scope: Scope

    def __init__(self, connect: Callable[[Worker, threading.Event], OpenHost], clock: Clock, timers: Timers) -> None:
        self._connect = connect
        self._timers = timers
        self.clock = clock
        self.threads = WorkerThreads(clock)
        self.observed = ObservedTime(clock, timers.seconds)
        self.reached = set(timers.reached)
        self.unreachable: dict[int, Unreachable] = {}
        self.patience = Patience()
        self.changed: dict[int, Worker] = {}
        self.ending = False
        self._hosts: dict[int, OpenHost] = {}
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

    def cancel_calls(self) -> None:
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
            threads.in_background(close)

    def host(self, worker: Worker) -> OpenHost:
        """Return the connection to a worker; connect on first use.

        Raises:
            HostUnreachableError: it does not answer.
            StepInterruptedError: the step is given up.
            NoDescriptorError: too many files are open.
        """
        interrupted, hosts = interruption() or self._interrupted, self._hosts
        if interrupted.is_set():
            raise StepInterruptedError
        if (host := hosts.get(worker.index)) is None:
            descriptors.require(urgent=self.ending)
            host = hosts[worker.index] = self._connect(worker, interrupted)
            if interrupted.is_set():
                _close(host)
                raise StepInterruptedError
        return host

    def mark_reachable(self, worker: Worker) -> None:
        """Record that a worker answered."""
        self.reached.add(worker.index)
        self.unreachable.pop(worker.index, None)
        self.observed.end(f"worker {worker.index} unreachable")

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
        seconds = self.observed.observe(f"worker {worker.index} unreachable", retry_after)
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

    def reset(self, *, keep_connections: bool = False) -> None:
        """Cancel all calls, close all connections, and count the time of all conditions from 0 again."""
        self.cancel_calls()
        if not keep_connections:
            self.close_hosts()
            self.unreachable.clear()
        self.observed.clear()

    def replace_machines(self, directory: Path) -> None:
        """Discard all that was observed of the workers, also on the disk: other machines take their place.

        Args:
            directory: the job's.
        """
        self.observed.clear()
        self.reached.clear()
        self.changed.clear()
        Timers.remove(directory)
        self._timers = Timers()

    def save_timers(self, directory: Path, round_: int, attempt: int) -> None:
        """Write what a later supervisor must know, if it has changed enough.

        Args:
            directory: the job's.
            round_: the round of set-up in which the time was counted.
            attempt: the attempt in which it was counted.
        """
        current = Timers(round_, attempt, self.observed.seconds(), tuple(sorted(self.reached)))
        self._timers = self._timers.replace_with(current, directory)

    def close_hosts(self) -> None:
        """Close all connections."""
        for index in tuple(self._hosts):
            self.close(index)


def _close(host: OpenHost) -> None:
    try:
        host.close()
    except (OSError, TpuxError):
        _log.debug("closing the connection to worker %d", host.worker.index, exc_info=True)
