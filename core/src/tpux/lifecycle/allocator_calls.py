"""The calls of allocators, in threads outside of the jobs' turns: an API that hangs delays no turn.

A job has one call at most. Its turn writes what must be known after a crash, then queues the call, and takes the answer
in a later turn, which begins at once when the answer has come. An answer that is never taken, since the process ends or
the job went on, is a call that a crash has cut off: the intent on the disk covers it.

While `provision` or `release` is under way, only its answer changes the job: its user's requests wait, and nothing else
is sent. A job that stops waits with its `release` for an `inspect` that has not returned. For a call that never ends
`supervisor/handover.py` replaces the process.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from tpux import threads
from tpux.clock import Clock
from tpux.plugin import calls, spec
from tpux.plugin.calls import RunningCalls

_log = logging.getLogger(__name__)
THREADS = 16
"""Calls of one allocator at a time; a quarter serves only jobs whose last call has returned in time."""
IN_TIME = 5.0
"""Seconds in which a call returns in time."""
BLOCKED_AFTER = 60.0
"""Seconds after which a call that has not returned counts as one of the `THREADS` no longer."""
WAIT = 0.1
"""Real seconds for which a turn waits for the answer itself, if the job's last one came as fast."""
PENDING_POLL = 2.0
"""Seconds until a turn looks again for an answer. It is told when one comes."""
_CHANGING = frozenset({spec.provision.__name__, spec.release.__name__})


@dataclass(eq=False)
class AllocatorCall:
    """A call that has not been answered, or whose answer was not taken yet.

    Attributes:
        allocator: the plugin.
        key: what it asks, by which its answer is recognized.
        run: makes the call.
        task: its place in the queue.
        started: when it began, by the monotonic clock; None while it waits for a thread.
        ended: it has returned, or raised.
        awaited: the turn that began it waits for it.
        left: the job is in another state than when it began.
        plugins: the calls of plugins in it that have not returned.
    """

    allocator: str
    key: Hashable
    run: Callable[[], object]
    task: threads.Task | None = None
    started: float | None = None
    ended: bool = False
    awaited: bool = True
    left: bool = False
    plugins: RunningCalls = field(default_factory=dict)
    answer: object = None
    error: BaseException | None = None

    def describe(self) -> str:
        """Return what has not returned, for people."""
        return f"the allocator {self.allocator} has not answered"


class _Lane:
    """The threads of one allocator's calls."""

    def __init__(self, allocator: str) -> None:
        self._free = threads.pool(f"allocator {allocator}", THREADS - THREADS // 4)
        self._kept = threads.pool(f"allocator {allocator}, in time", THREADS // 4)
        self._choosing = threading.Lock()
        self.running = set[AllocatorCall]()

    def submit(self, run: Callable[[], None], *, in_time: bool, first: bool) -> threads.Task:
        with self._choosing:
            pool = self._kept if in_time and self._free.full and not self._kept.full else self._free
            return pool.submit(run, first=first)

    def relieve(self, now: float) -> None:
        """Let a thread more work for each call that does not return."""
        blocked = sum(now - (call.started or now) > BLOCKED_AFTER for call in self.running.copy())
        self._free.limit = THREADS - THREADS // 4 + blocked
        with suppress(threads.NoThreadError):  # the next turn tries again
            self._free.grow()

    def pause(self, paused: bool) -> None:
        self._free.pause(paused)
        self._kept.pause(paused)

    def cancel(self, task: threads.Task) -> bool:
        return self._free.cancel(task) or self._kept.cancel(task)


_lanes: dict[str, _Lane] = {}
_guard = threading.Lock()
_paused = threading.Event()


def pause(paused: bool) -> None:
    """Begin no call until this is undone: the process is about to end."""
    with _guard:
        _paused.set() if paused else _paused.clear()
        for lane in _lanes.values():
            lane.pause(paused)


def running() -> bool:
    """Return whether a call of any job is under way."""
    return any(lane.running for lane in list(_lanes.values()))


class AllocatorCalls:
    """The calls of one job's allocator.

    Args:
        clock: the current time.

    Attributes:
        call: the one that is queued, or under way, or whose answer was not taken; None if there is none.
        holds_up: another one waits for it.
        on_answer: called in another thread when an answer has come for which no turn waits. Without it turns wait.
    """

    def __init__(self, clock: Clock) -> None:
        self.call: AllocatorCall | None = None
        self.holds_up = False
        self.on_answer: Callable[[], None] | None = None
        self._clock = clock
        self._lock = threading.Lock()
        self._lasted: float | None = None

    @property
    def changing(self) -> bool:
        """True while a call is under way whose answer must be taken before anything else changes the job."""
        call = self.call
        return call is not None and call.key in _CHANGING and not (call.left and call.ended)

    def running(self) -> AllocatorCall | None:
        """Return the call that has begun and has not returned; None if there is none."""
        call = self.call
        return call if call is not None and call.started is not None and not call.ended else None

    def ask(self, allocator: str, key: Hashable, prepare: Callable[[], Callable[[], object]]) -> AllocatorCall | None:
        """Return the answer to a question, once it has come; queue the call if that was not done yet.

        Args:
            allocator: the plugin that is called.
            key: what is asked; the name of a hook that changes something, else a question of its own for each use.
            prepare: returns what makes the call. It writes what must be known before.

        Returns:
            The call, whose answer is taken with `take`; None while it is under way, or another one is.

        Raises:
            NoThreadError: the call was not queued.
        """
        with self._lock:
            call = self.call
            if call is not None and call.key != key:
                if not call.ended and not (call.task and self._lane(call.allocator).cancel(call.task)):
                    self.holds_up = True
                    return None
                self.call = call = None  # nobody waits for its answer
            self.holds_up = False
        if call is None:
            call = self._begin(AllocatorCall(allocator, key, prepare()))
        with self._lock:
            call.awaited = False
            if call.ended:
                self.call = None
                return call
        self._lane(call.allocator).relieve(self._clock.monotonic())
        return None

    def notify(self) -> None:
        """Let the job have its next turn at once."""
        if self.on_answer is not None:
            self.on_answer()

    def leave(self) -> None:
        """Wait only for the end of a call: the job has entered a state that may not take its answer."""
        if self.call is not None:
            self.call.left = True

    def withdraw(self) -> None:
        """Forget a call that has not begun; a later turn asks again."""
        with self._lock:
            call = self.call
            if call is not None and call.task is not None and self._lane(call.allocator).cancel(call.task):
                self.call = None

    def _lane(self, allocator: str) -> _Lane:
        with _guard:
            if (lane := _lanes.get(allocator)) is None:
                lane = _lanes[allocator] = _Lane(allocator)
                lane.pause(_paused.is_set())
            return lane

    def _begin(self, call: AllocatorCall) -> AllocatorCall:
        lane, lasted = self._lane(call.allocator), self._lasted
        task = lane.submit(
            partial(self._make, call, lane),
            in_time=lasted is not None and lasted <= IN_TIME,
            first=call.key == spec.release.__name__,
        )
        with self._lock:
            call.task, self.call = task, call
        if self.on_answer is None:
            task.wait()
        elif lasted is None or lasted <= WAIT:
            task.wait(WAIT)
        return call

    def _make(self, call: AllocatorCall, lane: _Lane) -> None:
        started = 0.0
        try:
            call.started = started = self._clock.monotonic()
            lane.running.add(call)
            with calls.tracked(call.plugins):
                call.answer = call.run()
        except BaseException as error:  # noqa: BLE001  (raised in the turn that takes the answer)
            call.error = error
        finally:
            lane.running.discard(call)
            with self._lock:
                call.ended = True  # first: without memory the rest fails, and the answer is found by a later turn
                notify = self.on_answer if not call.awaited else None
                self._lasted = self._clock.monotonic() - started
            if notify is not None:
                notify()
