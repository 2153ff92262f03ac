"""Threads of the supervisor, while the system has none left or no memory: nothing waits without end."""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from tpux import threads
from tpux.clock import SystemClock
from tpux.errors import TpuxError
from tpux.plugin.calls import tracked
from tpux.remote import calls
from tpux.remote.calls import WorkerCalls, WorkerThreads
from tpux.remote.fanout import fanout
from tpux.supervisor.turns import THREADS, TurnPool
from tpux.threads import NoThreadError, Pool

Start = Callable[..., int]
Fail = Callable[["Start | None"], None]
REAL_START: Start = _thread.start_new_thread
SOON = 30.0


def no_thread(*_: object) -> int:
    raise RuntimeError("can't start new thread")


def no_memory(*_: object) -> int:
    raise MemoryError


def dies(*_: object) -> int:
    """Stand for a thread that has no memory for its first instruction."""
    return REAL_START(lambda: None, ())


FAILURES = pytest.mark.parametrize("failure", [no_thread, no_memory, dies])


@pytest.fixture
def fail(monkeypatch: pytest.MonkeyPatch) -> Fail:
    """Return what makes each start of a thread fail from now on; None mends it."""
    monkeypatch.setattr(threads, "START_TIMEOUT", 0.1)
    monkeypatch.setattr(threads, "_pools", {})
    return lambda how: monkeypatch.setattr(_thread, "start_new_thread", how or REAL_START)


@FAILURES
def test_a_task_is_refused_if_no_thread_would_take_it_and_nothing_is_left_of_it(fail: Fail, failure: Start) -> None:
    pool, done = Pool(limit=4), threading.Event()
    fail(failure)
    for _ in range(10):
        with pytest.raises(NoThreadError):
            pool.submit(done.set)
    fail(None)
    first = pool.submit(lambda: None)
    assert first.wait(SOON)
    assert not done.is_set()
    assert together(pool, 4), "no failed start counts as a thread"


@FAILURES
def test_the_threads_that_are_there_from_the_beginning_do_what_cannot_have_its_own(fail: Fail, failure: Start) -> None:
    pool = Pool(limit=8, least=1)
    fail(failure)
    gate = threading.Event()
    tasks = [pool.submit(gate.wait) for _ in range(5)]
    gate.set()
    assert all(task.wait(SOON) for task in tasks)


@FAILURES
def test_what_may_never_return_does_not_delay_what_has_no_thread(fail: Fail, failure: Start) -> None:
    pool, gate = Pool(least=1, keep=1), threading.Event()
    hangs = pool.submit(gate.wait)
    fail(failure)
    with pytest.raises(NoThreadError):
        pool.submit(gate.wait)
    gate.set()
    assert hangs.wait(SOON)


def test_a_thread_that_begins_after_all_is_not_one_too_many(fail: Fail) -> None:
    late = list[tuple[Callable[..., None], tuple[object, ...]]]()
    pool = Pool(limit=2)

    def start_late(run: Callable[..., None], arguments: tuple[object, ...]) -> int:
        late.append((run, arguments))
        return 0

    fail(start_late)
    with pytest.raises(NoThreadError):
        pool.submit(lambda: None)
    fail(None)
    run, arguments = late[0]
    run(*arguments)  # returns at once
    assert together(pool, 2)
    assert not together(pool, 3)


@pytest.mark.parametrize("error", [RuntimeError("bug"), MemoryError(), SystemExit(1), KeyboardInterrupt()])
def test_a_task_that_raises_costs_no_thread_and_neither_does_its_handler(
    error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = Pool(limit=2)

    def raise_error(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(threads._log, "error", raise_error)
    assert all(pool.submit(raise_error).wait(SOON) for _ in range(10))
    assert together(pool, 2)


def test_a_thread_without_memory_to_wait_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    pool, failures = Pool(limit=1, least=1), list[int]()
    assert pool.submit(lambda: None).wait(SOON)
    wait = pool._available.wait

    def fails_three_times() -> bool:
        if len(failures) < 3:
            failures.append(1)
            raise MemoryError
        return wait()

    monkeypatch.setattr(pool._available, "wait", fails_three_times)
    for _ in range(5):
        assert pool.submit(lambda: None).wait(SOON)
    while len(failures) < 3:
        threading.Event().wait(0.01)
    assert pool.submit(lambda: None).wait(SOON)
    assert pool._threads == 1


def test_a_withdrawn_task_is_not_done() -> None:
    pool, gate, done = Pool(limit=1), threading.Event(), list[int]()
    first, second = pool.submit(gate.wait), pool.submit(partial(done.append, 1))
    assert pool.cancel(second)
    assert not pool.cancel(first)
    gate.set()
    assert pool.submit(lambda: None).wait(SOON)
    assert done == []


def test_threads_that_nothing_needs_end() -> None:
    pool = Pool(least=2, keep=2)
    assert together(pool, 6)
    while pool._threads > 2:
        threading.Event().wait(0.01)
    pool.close()
    while pool._threads:
        threading.Event().wait(0.01)


# --- where they are used --------------------------------------------------------------------------


@FAILURES
def test_a_call_that_has_no_thread_leaves_its_worker_free(fail: Fail, failure: Start) -> None:
    made: WorkerCalls[int] = WorkerCalls(worker_threads := WorkerThreads(SystemClock()), threading.Event())
    fail(failure)
    with pytest.raises(NoThreadError):
        made.make({0: None, 1: None}, lambda index, _: index, 0.0)
    assert not worker_threads.busy()
    assert not made.pending
    fail(None)
    assert made.make_all({0: None, 1: None}, lambda index, _: index) == {0: 0, 1: 1}


def test_a_call_whose_answer_is_taken_has_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else whoever takes it, and leaves the state, closes all connections to give the call up."""
    made: WorkerCalls[int] = WorkerCalls(worker_threads := WorkerThreads(SystemClock()), threading.Event())
    taken = threading.Event()

    @contextmanager
    def slow(_: object) -> Iterator[None]:
        yield
        taken.wait(SOON)  # its thread gets no time meanwhile

    monkeypatch.setattr(calls, "tracked", slow)
    assert made.make({0: None, 1: None}, lambda index, _: index, SOON) == {0: 0, 1: 1}
    assert not worker_threads.busy()
    monkeypatch.setattr(calls, "tracked", tracked)
    assert made.make({0: None}, lambda index, _: index + 7, SOON) == {0: 7}, "and its worker is free"
    taken.set()
    while worker_threads._active:
        threading.Event().wait(0.01)


def test_a_call_whose_answer_cannot_be_kept_leaves_its_worker_free(monkeypatch: pytest.MonkeyPatch) -> None:
    made: WorkerCalls[int] = WorkerCalls(worker_threads := WorkerThreads(SystemClock()), threading.Event())

    class Full(dict[int, "int | TpuxError"]):
        def __setitem__(self, *_: object) -> None:
            raise MemoryError

    made._answers = Full()
    monkeypatch.setattr(calls._log, "error", no_memory)
    with pytest.raises(MemoryError):  # not the answer None, which says that all went well
        made.make({0: None}, lambda index, _: index, SOON)
    while worker_threads.busy():
        threading.Event().wait(0.01)
    made._answers = {}
    assert made.make_all({0: None}, lambda index, _: index) == {0: 0}
    while worker_threads._active:
        threading.Event().wait(0.01)


def test_a_call_that_cannot_begin_for_lack_of_memory_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    made: WorkerCalls[int] = WorkerCalls(worker_threads := WorkerThreads(SystemClock()), threading.Event())
    with monkeypatch.context() as patch:
        patch.setattr(calls, "tracked", no_memory)
        assert made.make({0: None}, lambda index, _: index, 0.5) == {}
        while worker_threads.busy():
            threading.Event().wait(0.01)
    assert made.make_all({0: None}, lambda index, _: index) == {0: 0}


@FAILURES
def test_a_fanout_without_threads_takes_longer(fail: Fail, failure: Start) -> None:
    fail(failure)
    assert fanout({1: "a", 2: "b"}, lambda _, item: item) == {1: "a", 2: "b"}


@FAILURES
def test_a_turn_that_has_no_thread_is_taken_when_there_is_one(fail: Fail, failure: Start) -> None:
    taken = list[str]()
    fail(failure)
    pool = TurnPool(taken.append, SystemClock())
    pool.submit("job")
    pool.wake(1)
    assert taken == []
    fail(None)
    while not taken:
        pool.blocked()
        threading.Event().wait(0.01)


@pytest.mark.parametrize("error", [RuntimeError("bug"), MemoryError()])
def test_turns_that_raise_leave_all_threads(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    started, gate = threading.Semaphore(0), threading.Event()

    def take_turn(job: str) -> None:
        if job == "fails":
            raise error
        started.release()
        gate.wait(SOON)

    monkeypatch.setattr(threads._log, "error", no_memory)
    pool = TurnPool(take_turn, SystemClock())
    for job in ["fails"] * 3 * THREADS + ["lasts"] * THREADS:
        pool.submit(job)
        pool.wake(1)
    assert all(started.acquire(timeout=SOON) for _ in range(THREADS))
    assert len(pool.running()) == THREADS
    gate.set()


def together(pool: Pool, number: int) -> bool:
    """Return whether so many tasks run at the same time."""
    barrier = threading.Barrier(number)

    def meet() -> None:
        try:
            barrier.wait(1.0)
            met.append(1)
        except threading.BrokenBarrierError:
            pass

    met = list[int]()
    tasks = [pool.submit(meet) for _ in range(number)]
    return all(task.wait(SOON) for task in tasks) and len(met) == number
