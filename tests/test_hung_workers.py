"""A worker whose connection hangs: its siblings' output and a stop are not delayed, and nothing is started too late."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from tpux import HostUnreachableError
from tpux.remote.calls import THREADS_OF_A_JOB, StepInterruptedError, WorkerCalls, WorkerThreads

from .world import SetClock, World

CONFIG = """
command:
  cmd: trap 'echo terminated; exit 1' TERM; echo started; while :; do echo $((n += 1)); sleep 0.1; done
  grace_period: 30s
"""


class HangingHost:
    """A connection whose methods do not return while its worker hangs, until the connection is closed."""

    def __init__(self, host, hung: set[int]) -> None:
        self.worker = host.worker
        self._host = host
        self._hung = hung
        self._closed = threading.Event()
        self._using = threading.Lock()

    def close(self) -> None:
        self._closed.set()
        self._host.close()

    def __getattr__(self, name: str) -> Callable[..., object]:
        def call(*args: object, **options: object) -> object:
            assert self._using.acquire(blocking=False), "two threads use a connection at the same time"
            try:
                while self.worker.index in self._hung:
                    if self._closed.wait(0.01):
                        raise HostUnreachableError("the connection was closed")
                return getattr(self._host, name)(*args, **options)
            finally:
                self._using.release()

        return call


class Hanging:
    """Which workers of a world hang, in their connection or while one connects to them."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        self.hung: set[int] = set()
        self.connecting: set[int] = set()
        plain = world.plugins.call_one

        def call_one(name, hook, **arguments):
            answer = plain(name, hook, **arguments)
            if hook.__name__ != "connect":
                return answer
            while arguments["worker"].index in self.connecting:
                time.sleep(0.01)
            return HangingHost(answer, self.hung)

        monkeypatch.setattr(type(world.plugins), "call_one", lambda _, name, hook, **rest: call_one(name, hook, **rest))


@pytest.fixture
def world(tmp_path, monkeypatch):
    return World(tmp_path, monkeypatch)


@pytest.fixture
def hanging(world, monkeypatch):
    world.create(CONFIG)
    hanging = Hanging(world, monkeypatch)
    world.restart_supervisor()
    yield hanging
    hanging.hung.clear()
    hanging.connecting.clear()


def until_stopped(world: World) -> None:
    world.until(lambda: world.state.state == "stopped")


def test_the_output_of_the_siblings_of_a_hung_worker_arrives(world, hanging):
    world.until(lambda: world.output(0) and world.output(1))
    hanging.hung.add(1)
    before = len(world.output(0))
    world.until(lambda: len(world.output(0)) > before + 30)
    assert world.controller.workers.threads.busy() == {1}
    hanging.hung.clear()
    before = len(world.output(1))
    world.until(lambda: len(world.output(1)) > before)
    assert [int(line) for line in world.output(1).split()[1:]] == list(range(1, len(world.output(1).split()))), (
        "all of it, and nothing twice"
    )


def test_a_stop_reaches_the_siblings_of_a_hung_worker(world, hanging):
    world.until(lambda: world.output(0) and world.output(1))
    hanging.hung.add(1)
    world.steps(3)
    world.request("stop")
    world.until(lambda: "terminated" in world.output(0))
    assert "terminated" not in world.output(1)
    assert world.state.state == "stopping"
    hanging.hung.clear()
    until_stopped(world)
    assert "terminated" in world.output(1)


def test_a_step_is_interrupted_while_a_worker_is_connected_to(world, hanging):
    world.until("setting-up")
    hanging.connecting.add(0)
    steps: list[object] = []

    def step() -> None:
        try:
            while True:
                world.controller.advance()
        except StepInterruptedError as error:
            steps.append(error)

    thread = threading.Thread(target=step)
    thread.start()
    while not world.controller.workers.threads.running():
        time.sleep(0.01)
    world.controller.workers.interrupt()
    thread.join(60)
    assert steps, "the step ended although `connect` has not returned"
    assert world.controller.workers.threads.busy() == {0}


def test_a_program_is_not_started_after_the_job_was_stopped(world, hanging):
    world.until("running")
    hanging.connecting.add(1)
    world.controller.workers.close(1)
    world.until(lambda: world.output(0))
    assert world.state.state == "running"
    world.request("stop")
    world.controller.workers.interrupt()
    world.controller.restart_phase()  # as `advance` does when the step is interrupted
    world.until(lambda: "terminated" in world.output(0))
    assert world.state.state == "stopping", "it is not known that nothing runs on worker 1"
    hanging.connecting.clear()
    until_stopped(world)
    assert world.output(1) == ""


# --- the threads of a job -------------------------------------------------------------------------


@pytest.fixture
def gate():
    """Return an event for which hung calls wait; it is set at the end."""
    yield (event := threading.Event())
    event.set()


def test_hung_workers_of_one_job_leave_threads_to_another(gate):
    hung: WorkerCalls[None] = WorkerCalls(threads := WorkerThreads(SetClock()), threading.Event())
    assert hung.make(dict.fromkeys(range(256)), lambda *_: gate.wait(), 0.0) == {}
    other: WorkerCalls[int] = WorkerCalls(WorkerThreads(SetClock()), threading.Event())
    assert other.make_all(dict.fromkeys(range(64)), lambda index, _: index) == {index: index for index in range(64)}
    assert len(threads.running()) <= THREADS_OF_A_JOB
    assert len(threads.busy()) == 256
    gate.set()
    while len(hung.pending) or hung.make({}, lambda *_: None, 0.0):
        time.sleep(0.01)
    assert threads.busy() == frozenset()


def test_a_worker_is_not_called_twice_at_the_same_time(gate):
    threads = WorkerThreads(SetClock())
    first: WorkerCalls[bool] = WorkerCalls(threads, threading.Event())
    second: WorkerCalls[bool] = WorkerCalls(threads, threading.Event())
    assert first.make({0: None}, lambda *_: gate.wait(), 0.0) == {}
    assert second.make({0: None, 1: None}, lambda *_: True, 60.0) == {1: True}
    gate.set()
    assert second.make_all({0: None}, lambda *_: True) == {0: True}
    assert first.make({}, lambda *_: False, 0.0) == {0: True}


def test_a_worker_is_not_called_again_before_its_late_answer_is_taken(gate):
    """A task that has completed would be continued, and its result replaced."""
    calls: WorkerCalls[str] = WorkerCalls(WorkerThreads(SetClock()), threading.Event())
    assert calls.make({0: None}, lambda *_: gate.wait() and "first", 0.0) == {}
    gate.set()
    while calls.pending:
        time.sleep(0.01)
    assert calls.make({0: None}, lambda *_: "second", 60.0) == {0: "first"}
    assert calls.make({0: None}, lambda *_: "second", 60.0) == {0: "second"}


def test_calls_of_a_given_up_step_are_not_begun(gate):
    interrupted, calls = threading.Event(), []
    hung: WorkerCalls[object] = WorkerCalls(threads := WorkerThreads(SetClock()), interrupted)
    hung.make(dict.fromkeys(range(THREADS_OF_A_JOB)), lambda *_: gate.wait(), 0.0)
    hung.make({99: None}, lambda *_: calls.append(99), 0.0)
    interrupted.set()
    gate.set()
    while threads.busy():
        time.sleep(0.01)
    assert calls == []


def test_a_step_that_waits_for_all_workers_is_given_up(gate):
    interrupted = threading.Event()
    hung: WorkerCalls[object] = WorkerCalls(WorkerThreads(SetClock()), interrupted)
    interrupt, answer = threading.Timer(0.1, interrupted.set), threading.Timer(10.0, gate.set)
    interrupt.start()
    answer.start()
    with pytest.raises(StepInterruptedError):
        hung.make_all({0: None}, lambda *_: gate.wait())
    answer.cancel()


def test_an_exception_that_is_no_answer_is_raised_in_the_step():
    calls: WorkerCalls[object] = WorkerCalls(WorkerThreads(SetClock()), threading.Event())
    with pytest.raises(ZeroDivisionError):
        calls.make_all({0: None}, lambda *_: 1 / 0)
