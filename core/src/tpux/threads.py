"""The threads of this process: pools that survive a moment without memory.

`threading.Thread.start` waits without end for a thread that died while it started, and a `ThreadPoolExecutor` then
holds a lock that all executors of the process share. So threads are started by `_thread`, here only. Who starts one
waits for `START_TIMEOUT` at most, and whatever fails, also in a handler of an error, the counts are undone.

All threads are daemon threads: one that never returns does not keep the process alive.
"""

from __future__ import annotations

import _thread
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

_log = logging.getLogger(__name__)
START_TIMEOUT = 5.0
"""Real seconds after which a thread that has not begun counts as dead; should it begin after all, it ends at once."""
LEAST = 2
"""Threads that a shared pool starts at once."""
RETRY_AFTER = 0.1
"""Real seconds after which a thread that cannot wait for its next task, without memory, tries again."""


class NoThreadError(OSError):
    """The system has no thread left, which may end at any moment."""

    def __init__(self) -> None:
        super().__init__("the system has no thread left")


class Task:
    """What a thread of a pool does, or is to do.

    Args:
        run: is called once; an error of it is logged.
    """

    def __init__(self, run: Callable[[], object]) -> None:
        self._run = run
        self._ended = _thread.allocate_lock()
        self._ended.acquire()

    @property
    def alive(self) -> bool:
        """True until it has ended."""
        return self._ended.locked()

    def wait(self, timeout: float = -1.0) -> bool:
        """Wait until it has ended, for at most this many real seconds; return whether it has."""
        if ended := self._ended.acquire(timeout=timeout):
            self._ended.release()
        return ended

    def run(self) -> None:
        """Do it."""
        try:
            self._run()
        except BaseException as error:  # noqa: BLE001  (it may raise anything, and the thread has other tasks)
            with suppress(BaseException):
                _log.error("a task of a thread has failed", exc_info=error)
        finally:
            self._ended.release()


class Pool:
    """Threads that take tasks from a queue.

    Args:
        limit: how many threads; without a limit no task waits for another one.
        least: how many are started with the pool, so that something works if the system has no thread left later.
        keep: how many wait for the next task; a thread more ends.

    Attributes:
        limit: as above; it may be changed, and threads in excess of it end after their tasks.
    """

    def __init__(self, limit: float = math.inf, least: int = 0, keep: float = math.inf) -> None:
        self.limit = limit
        self._keep = keep
        self._lock = threading.Lock()
        self._available = threading.Condition(self._lock)
        """A task may be taken, or a thread is to end. One thread is woken for each task, not all that are idle."""
        self._queue: deque[Task] = deque()
        self._starting = set[object]()
        self._threads = self._idle = 0
        self._paused = self._closed = False
        with suppress(NoThreadError):  # a task starts them too
            for _ in range(least):
                self._start()

    def submit(self, run: Callable[[], object], *, wake: bool = True, first: bool = False) -> Task:
        """Run something in a thread, as soon as one is free.

        Args:
            run: is called once.
            first: before all that waits.
            wake: let a thread take it at once; else one that is free anyway does, or a later `grow` starts one.

        Raises:
            NoThreadError: no thread would ever take it. Nothing is left of it.
            MemoryError: the same.
        """
        task = Task(run)
        with self._lock:
            self._queue.appendleft(task) if first else self._queue.append(task)
        if wake:
            try:
                self.grow()
            except BaseException as error:
                if self._withdraw(task, always=not isinstance(error, NoThreadError)):
                    raise
        return task

    @property
    def full(self) -> bool:
        """True if one task more would wait for another one to end."""
        return self._threads >= self.limit and len(self._queue) >= self._idle

    def grow(self) -> None:
        """Wake a thread, or start one, for a task that waits.

        Raises:
            NoThreadError: it cannot be started; what waits is done by the threads that there are.
        """
        with self._lock:
            if self._queue:
                self._available.notify()
            needed = len(self._queue) > self._idle + len(self._starting) and self._threads < self.limit
        if needed and not self._closed:
            self._start()

    def cancel(self, task: Task) -> bool:
        """Withdraw a task; return False if it has begun."""
        return self._withdraw(task, always=True)

    def pause(self, paused: bool) -> None:
        """Begin no task until this is undone."""
        if paused != self._paused:
            with self._lock:
                self._paused = paused
                self._available.notify_all()

    def close(self) -> None:
        """Withdraw all tasks that have not begun, and end the threads after those that have."""
        with self._lock:
            self._closed = True
            self._queue.clear()
            self._available.notify_all()

    def _withdraw(self, task: Task, *, always: bool) -> bool:
        with self._lock:
            waits = task in self._queue
            served = self._threads > len(self._starting) if self.limit < math.inf else len(self._queue) <= self._idle
            if waits and (always or not served):
                self._queue.remove(task)
                return True
            return False

    def _start(self) -> None:
        ticket, begun = object(), _thread.allocate_lock()
        begun.acquire()
        with self._lock:
            self._starting.add(ticket)
            self._threads += 1
        try:
            _thread.start_new_thread(self._serve, (ticket, begun))
            begun.acquire(timeout=START_TIMEOUT)
        except (RuntimeError, MemoryError) as error:
            raise NoThreadError from error
        finally:
            with self._lock:
                failed = ticket in self._starting
                self._starting.discard(ticket)
                self._threads -= failed
        if failed:
            raise NoThreadError

    def _serve(self, ticket: object, begun: _thread.LockType) -> None:
        with self._lock:
            if ticket not in self._starting:
                return
            self._starting.discard(ticket)
        begun.release()
        while True:
            try:
                if (task := self._next()) is None:
                    return
                task.run()
            except BaseException:  # noqa: BLE001  (no memory to wait: the thread is kept)
                time.sleep(RETRY_AFTER)

    def _next(self) -> Task | None:
        """Wait for the next task; return None if this thread is to end, which is counted."""
        with self._lock:
            self._idle += 1
            try:
                while not self._surplus and (self._paused or not self._queue):
                    self._available.wait()
                if not self._surplus:
                    return self._queue.popleft()
                self._threads -= 1
                return None
            finally:
                self._idle -= 1

    @property
    def _surplus(self) -> bool:
        return self._closed or self._threads > self.limit or (self._idle > self._keep and not self._queue)


_pools: dict[str, Pool] = {}
_creating = threading.Lock()


def pool(name: str = "plugins", limit: float = math.inf) -> Pool:
    """Return a pool of this process. What a turn does not do itself runs in one of them: a simulation replaces this.

    Args:
        name: which one.
        limit: how many threads it has. By default there is no limit, for what may never return.
    """
    return _shared(name, limit)


def _shared(name: str, limit: float = math.inf) -> Pool:
    with _creating:
        if (found := _pools.get(name)) is None:
            found = _pools[name] = Pool(limit, LEAST, keep=limit if limit < math.inf else LEAST)
        return found


def in_background(run: Callable[[], object], name: str = "plugins") -> None:
    """Do something that may take a moment in a thread of a pool, or here if there is none."""
    try:
        pool(name).submit(run)
    except (NoThreadError, MemoryError):
        run()


@contextmanager
def later(seconds: float, call: Callable[[], object]) -> Iterator[None]:
    """Call something in a thread unless the block has ended before; never, if the system has no thread left.

    Args:
        seconds: real seconds.
        call: what is called.
    """
    ended = threading.Event()
    with suppress(NoThreadError):
        _shared("timers").submit(lambda: ended.wait(seconds) or call())
    try:
        yield
    finally:
        ended.set()
