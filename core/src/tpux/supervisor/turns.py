"""The threads in which jobs take their turns. A turn that does not return costs no other job its turn.

A turn that has lasted for `BLOCKED_AFTER` is blocked: it no longer counts as one of the `THREADS`, and its job gets no
other turn while it lasts. `plugin/calls.py` knows in which hook of which plugin it is. Only the job's own turn may
write its events, so the supervisor writes what blocks it into `report.json` (`report`), from which commands show it.

A stop or delete interrupts a turn that waits for workers (`remote/calls.py`). The code of a plugin cannot be
interrupted: only the end of the process ends its thread (`handover`).
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from tpux.clock import Clock
from tpux.plugin.calls import RunningCalls, tracked

_log = logging.getLogger(__name__)
THREADS = 16
"""Turns at a time, blocked ones not counted."""
BLOCKED_AFTER = 60.0
"""Seconds after which a turn that has not returned is called blocked."""


@dataclass(eq=False)
class Turn:
    """A turn that has not returned yet.

    Attributes:
        job: whose turn it is.
        started: when it began, by the monotonic clock.
        calls: the calls of plugins in it that have not returned.
        blocked: it has lasted longer than `BLOCKED_AFTER`.
        what: what has not returned if that is no call of a plugin.
    """

    job: str
    started: float
    calls: RunningCalls = field(default_factory=dict)
    blocked: bool = False
    what: str = "a step of the job has not returned"

    def describe(self) -> str:
        """Return what the turn waits for, for people."""
        what = next(map(str, self.calls.copy().values()), self.what)
        return f"{what} for more than a minute" if self.blocked else what


class TurnPool:
    """Up to `THREADS` threads, and one more for each blocked turn.

    They are daemon threads: one that never returns does not keep the process alive.

    Args:
        take_turn: takes one turn of a job; raises nothing.
        clock: the current time.
    """

    def __init__(self, take_turn: Callable[[str], None], clock: Clock) -> None:
        self._take_turn = take_turn
        self._clock = clock
        self._guard = threading.Lock()
        self._available = threading.Condition(self._guard)
        """A turn may begin, or a thread is to end. One thread is woken for each turn, not all that are idle."""
        self._returned = threading.Condition(self._guard)
        """A turn has returned."""
        self._queue: deque[str] = deque()
        self._turns: set[Turn] = set()
        self._threads = 0
        self._idle = 0
        self._blocked = 0
        self._closed = False
        self._paused = False

    @property
    def paused(self) -> bool:
        """True if no turn begins: those that are submitted wait."""
        return self._paused

    @paused.setter
    def paused(self, paused: bool) -> None:
        if paused != self._paused:
            with self._guard:
                self._paused = paused
                self._available.notify_all()

    def submit(self, jobs: Iterable[str], threads: int) -> None:
        """Take a turn of each of these jobs as soon as a thread is free.

        Args:
            jobs: the jobs, in the order of their turns.
            threads: how many threads are woken, at least one while any turn waits. For turns that are expected to be
                short, fewer threads than jobs use less CPU; if the turns take long, each later call wakes another one.
        """
        with self._guard:
            self._queue.extend(jobs)
            for _ in range(max(threads, 1) if self._queue else 0):
                self._add_thread()
                self._available.notify()

    def blocked(self) -> list[Turn]:
        """Return the turns that are blocked. For each new one there is one thread more from now on."""
        now = self._clock.monotonic()
        with self._guard:
            self._add_thread()
            for turn in self._turns:
                if not turn.blocked and now - turn.started > BLOCKED_AFTER:
                    turn.blocked = True
                    self._blocked += 1
                    self._add_thread()
            return [turn for turn in self._turns if turn.blocked]

    def running(self) -> list[Turn]:
        """Return the turns that have begun, and have not returned."""
        with self._guard:
            return list(self._turns)

    def end(self, timeout: float) -> None:
        """Begin no more turns, and wait for those that have begun.

        Args:
            timeout: real seconds to wait.
        """
        with self._guard:
            self._closed = True
            self._queue.clear()
            self._available.notify_all()
            self._returned.wait_for(lambda: not self._turns, timeout)

    def _add_thread(self) -> None:
        """Start a thread if a turn waits for one and the limit allows it, with the guard held."""
        if len(self._queue) > self._idle and self._threads - self._blocked < THREADS:
            try:
                threading.Thread(target=self._work, name="turn", daemon=True).start()
            except RuntimeError as error:  # the system has no thread left: `blocked` tries again
                _log.error("no thread for another turn: %s", error)
                return
            self._threads += 1

    @property
    def _surplus(self) -> bool:
        """True if a thread is to end: the pool was closed, or a blocked turn has returned after all."""
        return self._closed or self._threads - self._blocked > THREADS

    def _work(self) -> None:
        while (turn := self._next()) is not None:
            try:
                with tracked(turn.calls):
                    self._take_turn(turn.job)
            finally:
                self._finish(turn)

    def _next(self) -> Turn | None:
        """Wait for the next turn.

        Returns:
            The turn; None if this thread is to end.
        """
        with self._guard:
            self._idle += 1
            self._available.wait_for(lambda: (self._queue and not self._paused) or self._surplus)
            self._idle -= 1
            if self._surplus:
                self._threads -= 1
                return None
            turn = Turn(self._queue.popleft(), self._clock.monotonic())
            self._turns.add(turn)
            return turn

    def _finish(self, turn: Turn) -> None:
        with self._guard:
            self._turns.discard(turn)
            self._blocked -= turn.blocked
            self._returned.notify_all()
