"""Calls of a job's workers in threads, so that a worker that hangs delays neither its siblings nor the job's step.

A step starts calls and takes the answers that have arrived, after at most `tasks.WAIT_FOR_ANSWERS`; the answer of a
slow worker is taken by a later step. No two calls of a worker run at the same time, since a connection is used by one
thread at a time; so nothing is concluded about a worker on which the program may be starting just now.

A stop interrupts the step: the connections are closed, so that every wait ends, and whatever a call of that step
obtains afterwards, also a connection that opens only then, cannot be used any more.
"""

from __future__ import annotations

import contextvars
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from tpux import threads
from tpux.clock import Clock
from tpux.errors import TpuxError
from tpux.plugin.calls import RunningCalls, tracked

_log = logging.getLogger(__name__)
T = TypeVar("T")
R = TypeVar("R")

THREADS = 512
"""Threads of all jobs; they spend their time waiting for workers."""
THREADS_OF_A_JOB = 32
"""Threads of one job, so that workers of it that hang leave most to other jobs."""
CHECK_EVERY = 0.2
"""Real seconds between two checks whether the step is interrupted."""

_interrupted: contextvars.ContextVar[threading.Event | None] = contextvars.ContextVar("interrupted", default=None)


class StepInterruptedError(Exception):
    """The step was given up because the job is to be stopped. Nothing is wrong, and the next step follows at once."""


@dataclass(eq=False)
class Call:
    """A call of a worker that has not returned.

    Attributes:
        worker: its number.
        run: makes the call.
        interrupted: once it is set the call is given up: it is not begun, and cannot use its worker any more.
        what: what it does, for people.
        started: when it began, by the job's monotonic clock; None while it waits for a thread.
        plugins: the calls of plugins in it that have not returned.
    """

    worker: int
    run: Callable[[], None]
    interrupted: threading.Event
    what: str
    started: float | None = None
    plugins: RunningCalls = field(default_factory=dict)

    def describe(self) -> str:
        """Return what has not returned, for people."""
        return f"worker {self.worker}: {self.what} has not returned"


class WorkerThreads:
    """The calls of one job's workers that have not returned.

    Args:
        clock: tells when a call began.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._calls: dict[int, Call] = {}
        self._queue: deque[Call] = deque()
        self._active = 0

    def busy(self) -> frozenset[int]:
        """Return the workers whose call has not returned."""
        with self._lock:
            return frozenset(self._calls)

    def running(self) -> list[Call]:
        """Return the calls that have begun and have not returned."""
        with self._lock:
            return [call for call in self._calls.values() if call.started is not None]

    def submit(self, call: Call) -> bool:
        """Begin a call as soon as a thread is free; return False if another call of the worker has not returned.

        Raises:
            NoThreadError: there is no thread for it.
        """
        with self._lock:
            if call.worker in self._calls:
                return False
            self._queue.append(call)
            self._calls[call.worker] = call
            if self._active >= THREADS_OF_A_JOB:
                return True
            self._active += 1
        try:
            threads.pool("workers", THREADS).submit(self._work)
        except BaseException:
            with self._lock:
                self._active -= 1
                if self._active == 0 and call in self._queue:  # else another thread of the job makes it
                    self._queue.remove(call)
                    del self._calls[call.worker]
                    raise
        return True

    def _work(self) -> None:
        while (call := self._next()) is not None:
            try:
                call.started = self._clock.monotonic()
                token = _interrupted.set(call.interrupted)
                try:
                    with tracked(call.plugins):
                        call.run()
                finally:
                    _interrupted.reset(token)
            except BaseException as error:  # noqa: BLE001  (its handlers raise too without memory)
                with suppress(BaseException):
                    _log.error("%s", call.describe(), exc_info=error)
            finally:
                self.returned(call)

    def returned(self, call: Call) -> None:
        """Leave the call's worker free for another one."""
        with self._lock:
            if self._calls.get(call.worker) is call:
                del self._calls[call.worker]

    def _next(self) -> Call | None:
        with self._lock:
            if not self._queue:
                self._active -= 1
                return None
            return self._queue.popleft()


class WorkerCalls(Generic[R]):
    """The calls that one task of a job makes.

    Args:
        threads: those of the job.
        interrupted: set when the current step is given up.
        what: what a call does, for people.
    """

    def __init__(self, threads: WorkerThreads, interrupted: threading.Event, what: str = "a call") -> None:
        self._threads = threads
        self._interrupted = interrupted
        self._what = what
        self._changed = threading.Condition()
        self._pending: set[int] = set()
        self._awaited: set[int] = set()
        self._answers: dict[int, R | TpuxError] = {}
        self._errors: list[BaseException] = []
        self._lost = False
        """An answer could not be kept."""

    @property
    def pending(self) -> frozenset[int]:
        """The workers whose answer has not arrived."""
        with self._changed:
            return frozenset(self._pending)

    def make(self, items: Mapping[int, T], call: Callable[[int, T], R], timeout: float) -> dict[int, R | TpuxError]:
        """Call `call` for each worker, and return all answers that have arrived, also those of earlier calls.

        A worker is left out while another call of it has not returned.

        Args:
            items: an item for each worker to call.
            call: takes a worker's number and its item.
            timeout: real seconds to wait for the answers of the calls that begin now, not for those of earlier ones.

        Returns:
            The result, or the `TpuxError` that the call raised, by worker.

        Raises:
            StepInterruptedError: the step was given up.
            Exception: another exception of a call.
        """
        begun = {index for index, item in items.items() if self._begin(index, item, call)}
        deadline = time.monotonic() + timeout
        with self._changed:
            self._awaited = begun & self._pending
            while (left := deadline - time.monotonic()) > 0 and self._awaited and not self._interrupted.is_set():
                self._changed.wait(min(left, CHECK_EVERY))
            answers, self._answers = self._answers, {}
            errors, self._errors = self._errors, []
        if self._interrupted.is_set():
            raise StepInterruptedError
        if self._lost:  # the next step begins all tasks again, as after every error
            self._lost = False
            raise MemoryError
        if errors:
            raise errors[0]
        return {index: answers[index] for index in sorted(answers)}

    def make_all(self, items: Mapping[int, T], call: Callable[[int, T], R]) -> dict[int, R | TpuxError]:
        """Call `call` for each worker, and wait until every one has answered; see `make`."""
        answers: dict[int, R | TpuxError] = {}
        while left := {index: item for index, item in items.items() if index not in answers}:
            answers |= self.make(left, call, timeout=1.0)
            if len(answers) < len(items):  # another call of the worker has not returned
                self._interrupted.wait(CHECK_EVERY / 4)
        return answers

    def _begin(self, index: int, item: T, call: Callable[[int, T], R]) -> bool:
        def run() -> None:
            answer: R | TpuxError | None = None
            error: BaseException | None = None
            try:
                if interrupted.is_set():
                    raise StepInterruptedError  # noqa: TRY301  (as if it had been raised by the call)
                answer = call(index, item)
            except TpuxError as unreachable:
                answer = unreachable
            except BaseException as other:  # noqa: BLE001  (raised by `make`, in the job's turn)
                error = other
            with self._changed:
                self._threads.returned(made)  # who takes its answer, and leaves the state, has nothing to give up
                self._pending.discard(index)
                self._awaited.discard(index)
                try:
                    if error is not None:
                        self._errors.append(error)
                    else:
                        self._answers[index] = answer  # type: ignore[assignment]  # R may be None
                except MemoryError:
                    self._lost = True
                if not self._awaited:  # else a poll of 64 workers would wake the job's turn 64 times
                    self._changed.notify_all()

        interrupted = self._interrupted
        made = Call(index, run, interrupted, self._what)
        with self._changed:
            if index in self._answers or (index in self._pending and index in self._threads.busy()):
                return False  # an answer that was not taken is never replaced
            self._pending.add(index)
        begun = False
        try:
            begun = self._threads.submit(made)
        finally:
            if not begun:
                with self._changed:
                    self._pending.discard(index)
        return begun


def interruption() -> threading.Event | None:
    """Return the event that gives up the call in which this thread is; None outside of such a call."""
    return _interrupted.get()
