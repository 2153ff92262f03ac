"""The calls of allocators: one for each job, in threads that jobs whose API hangs do not take from others."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from tpux import threads
from tpux.clock import SystemClock
from tpux.lifecycle import allocator_calls
from tpux.lifecycle.allocator_calls import THREADS, AllocatorCalls
from tpux.threads import NoThreadError, Pool

SOON = 30.0


@pytest.fixture(autouse=True)
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Return an event for which hung calls wait; it is set at the end."""
    monkeypatch.setattr(threads, "_pools", {})
    monkeypatch.setattr(allocator_calls, "_lanes", {})
    monkeypatch.setattr(allocator_calls, "WAIT", 0.0)
    yield (event := threading.Event())
    event.set()


class Job:
    """One job's calls, as its turns make them."""

    def __init__(self) -> None:
        self.answered = threading.Event()
        self.calls = AllocatorCalls(SystemClock())
        self.calls.on_answer = self.answered.set
        self.made = list[str]()

    def ask(self, key: str, call: Callable[[], object] = lambda: True) -> object:
        """Return the answer, None if it has not come."""

        def make() -> object:
            self.made.append(key)
            return call()

        self.answered.clear()
        found = self.calls.ask("a", key, lambda: make)
        return found and (found.error or found.answer)

    def asks(self, key: str, call: Callable[[], object] = lambda: True) -> object:
        """Return the answer, once it has come."""
        while (answer := self.ask(key, call)) is None:
            assert self.answered.wait(SOON), "no turn was told of the answer"
        return answer


@pytest.mark.parametrize("error", [NoThreadError(), MemoryError(), RuntimeError("bug")])
def test_a_call_that_cannot_be_queued_leaves_the_job_free_to_ask_again(monkeypatch, error):
    job, prepared = Job(), []

    def refuse(*_: object, **__: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(Pool, "submit", refuse)
        for _ in range(3):
            with pytest.raises(type(error)):
                job.calls.ask("a", "provision", lambda: prepared.append(1) or bool)
            assert job.calls.call is None
            assert not job.calls.changing, "a stop would wait without end"
    assert len(prepared) == 3
    assert job.asks("provision") is True


def test_a_job_has_one_call_and_its_answer_is_not_taken_for_that_to_another_question(gate):
    job = Job()
    assert job.ask("inspect", gate.wait) is None
    while job.calls.running() is None:
        threading.Event().wait(0.01)
    assert job.ask("release") is None
    assert job.calls.holds_up
    gate.set()
    assert job.asks("release", lambda: "released") == "released"
    assert job.made == ["inspect", "release"]
    assert not job.calls.holds_up


def test_nothing_else_changes_a_job_while_its_machines_are_requested(gate):
    job = Job()
    job.ask("provision", gate.wait)
    assert job.calls.changing
    gate.set()
    assert job.answered.wait(SOON)
    assert job.calls.changing, "the answer was not taken yet"
    job.ask("provision")
    assert not job.calls.changing


def test_a_job_that_left_the_state_in_which_it_asked_waits_only_for_the_end_of_the_call(gate):
    job = Job()
    job.ask("provision", gate.wait)
    job.calls.leave()
    assert job.calls.changing, "no release is sent"
    gate.set()
    assert job.answered.wait(SOON)
    assert not job.calls.changing


def test_an_error_is_raised_by_the_turn_that_takes_the_answer():
    job = Job()
    assert isinstance(job.asks("inspect", lambda: 1 / 0), ZeroDivisionError)
    assert job.asks("inspect") is True


def test_jobs_whose_api_hangs_leave_threads_to_those_whose_last_call_came_in_time(gate):
    healthy = Job()
    assert healthy.asks("inspect") is True
    hung = [Job() for _ in range(3 * THREADS)]
    for job in hung:
        job.ask("inspect", gate.wait)
    assert sum(map(bool, (job.calls.running() for job in hung))) <= THREADS - THREADS // 4
    for _ in range(10):
        assert healthy.asks("inspect") is True
    assert healthy.asks("release") is True


def test_releases_are_called_first(gate):
    hung, order = [Job() for _ in range(THREADS)], list[str]()
    for job in hung:
        job.ask("inspect", gate.wait)
    first, second = Job(), Job()
    first.ask("inspect", lambda: order.append("inspect") or True)
    second.ask("release", lambda: order.append("release") or True)
    for job in hung[THREADS - THREADS // 4 :]:
        job.calls.withdraw()
    allocator_calls._lanes["a"]._free.limit = 1
    gate.set()
    assert first.answered.wait(SOON)
    assert order == ["release", "inspect"]


def test_calls_that_never_return_do_not_count_as_threads(gate, monkeypatch):
    monkeypatch.setattr(allocator_calls, "BLOCKED_AFTER", 0.05)
    hung, other = [Job() for _ in range(THREADS)], Job()
    for job in hung:
        job.ask("inspect", gate.wait)
    while other.ask("inspect") is None:
        other.answered.wait(0.05)


def test_a_call_that_was_withdrawn_or_is_paused_is_not_made_before_it_is_asked_for_again(gate):
    hung, job = [Job() for _ in range(THREADS)], Job()
    for one in hung:
        one.ask("inspect", gate.wait)
    job.ask("provision")
    allocator_calls.pause(True)
    gate.set()
    job.calls.withdraw()
    assert not job.calls.changing
    while allocator_calls.running():
        threading.Event().wait(0.01)
    assert job.ask("provision") is None
    assert not job.answered.wait(0.1)
    assert job.made == []
    allocator_calls.pause(False)
    assert job.asks("provision") is True


def test_calls_that_come_in_time_do_not_wait_behind_those_that_never_return(gate, monkeypatch):
    """A task never moves from one of the two pools to the other, and more threads come to one of them only."""
    monkeypatch.setattr(allocator_calls, "BLOCKED_AFTER", 0.05)
    jobs = [Job() for _ in range(3 * THREADS)]
    for job in jobs:
        assert job.asks("inspect") is True
    hung, others = jobs[:THREADS], jobs[THREADS:]
    for job in hung:
        job.ask("inspect", gate.wait)
    waiting = {job for job in others if job.ask("inspect") is None}
    deadline = time.monotonic() + SOON
    while waiting:
        assert time.monotonic() < deadline, f"{len(waiting)} calls never begin"
        waiting = {job for job in waiting if job.ask("inspect") is None}
        threading.Event().wait(0.01)


@pytest.mark.parametrize("nth", [1, 2])
def test_a_call_that_fails_for_lack_of_memory_beside_its_plugin_has_an_answer(nth):
    """Without one its job would wait without end, and with `provision` so would a stop of it."""
    job = Job()

    class NoMemory(SystemClock):
        calls = 0

        def monotonic(self) -> float:
            if threading.current_thread() is not threading.main_thread():
                self.calls += 1
                if self.calls == nth:
                    raise MemoryError
            return super().monotonic()

    job.calls._clock = NoMemory()
    deadline = time.monotonic() + SOON
    while (answer := job.ask("provision")) is None:
        assert time.monotonic() < deadline, "its end is not known"
        threading.Event().wait(0.01)
    assert answer is True or isinstance(answer, MemoryError)
    assert not job.calls.changing


def test_the_first_call_of_an_allocator_is_not_made_while_the_process_ends():
    job = Job()
    allocator_calls.pause(True)
    try:
        assert job.ask("provision") is None
        assert not job.answered.wait(0.1)
        assert job.made == []
    finally:
        allocator_calls.pause(False)
    assert job.asks("provision") is True
