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
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from tpux.clock import Clock
from tpux.plugin.calls import RunningCalls, tracked
from tpux.threads import NoThreadError, Pool

_log = logging.getLogger(__name__)
THREADS = 16
"""Turns at a time, blocked ones not counted."""
LEAST = 4
"""Threads that are there from the beginning."""
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

    Args:
        take_turn: takes one turn of a job; raises nothing.
        clock: the current time.
    """

    def __init__(self, take_turn: Callable[[str], None], clock: Clock) -> None:
        self._take_turn = take_turn
        self._clock = clock
        self._pool = Pool(THREADS, LEAST)
        self._returned = threading.Condition()
        """A turn has returned."""
        self._turns: set[Turn] = set()
        self._paused = False

    @property
    def paused(self) -> bool:
        """True if no turn begins: those that are submitted wait."""
        return self._paused

    @paused.setter
    def paused(self, paused: bool) -> None:
        self._paused = paused
        self._pool.pause(paused)

    def submit(self, job: str) -> None:
        """Take a turn of a job as soon as `wake` has been called and a thread is free."""
        turn = Turn(job, self._clock.monotonic())
        self._pool.submit(partial(self._work, turn), wake=False)

    def wake(self, threads: int) -> None:
        """Let threads take the turns that wait.

        Args:
            threads: how many are woken, at least one while any turn waits. For turns that are expected to be short,
                fewer threads than jobs use less CPU; if the turns take long, each later call wakes another one.
        """
        try:
            for _ in range(max(threads, 1)):
                self._pool.grow()
        except NoThreadError as error:  # `blocked` tries again
            _log.error("no thread for another turn: %s", error)

    def blocked(self) -> list[Turn]:
        """Return the turns that are blocked. For each new one there is one thread more from now on."""
        now = self._clock.monotonic()
        with self._returned:
            for turn in self._turns:
                turn.blocked = turn.blocked or now - turn.started > BLOCKED_AFTER
            found = [turn for turn in self._turns if turn.blocked]
            self._pool.limit = THREADS + len(found)
        self.wake(len(found))
        return found

    def running(self) -> list[Turn]:
        """Return the turns that have begun, and have not returned."""
        with self._returned:
            return list(self._turns)

    def end(self, timeout: float) -> None:
        """Begin no more turns, and wait for those that have begun.

        Args:
            timeout: real seconds to wait.
        """
        self._pool.close()
        with self._returned:
            self._returned.wait_for(lambda: not self._turns, timeout)

    def _work(self, turn: Turn) -> None:
        turn.started, taken = self._clock.monotonic(), False
        try:
            with self._returned:
                self._turns.add(turn)
            with tracked(turn.calls):
                taken = True
                self._take_turn(turn.job)
        finally:
            if not taken:  # without memory: one that nobody sees is better than a job without turns
                self._take_turn(turn.job)
            with self._returned:
                self._turns.discard(turn)
                self._pool.limit = THREADS + sum(turn.blocked for turn in self._turns)
                self._returned.notify_all()
