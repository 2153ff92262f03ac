"""The scheduler: a job always gets its next turn, even if its turn raises or the machine's clock changes."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tpux.lifecycle.advance import JobController
from tpux.model.events import Created
from tpux.store import Store
from tpux.store.locks import Lock
from tpux.supervisor import scheduler
from tpux.supervisor import turns as turns_module
from tpux.supervisor.scheduler import Supervisor
from tpux.supervisor.turns import BLOCKED_AFTER, THREADS, TurnPool

Advance = Callable[[JobController], "float | None"]


class VirtualClock:
    """Time that passes only when the supervisor waits and no job has its turn."""

    def __init__(self) -> None:
        self.wall = 1e9
        self.elapsed = 0.0
        self.jump = 0.0
        self.supervisor: Supervisor | None = None

    def now(self) -> float:
        return self.wall + self.elapsed

    def monotonic(self) -> float:
        return self.elapsed

    def boottime(self) -> float:
        return self.monotonic()

    def sleep(self, seconds: float) -> None:
        self.elapsed += seconds

    def wait(self, event: threading.Event, seconds: float) -> bool:
        assert self.elapsed < 1e5, "a job got no more turns"
        assert self.supervisor is not None
        if self.supervisor._busy:
            return event.wait(0.001)
        self.wall, self.jump = self.wall + self.jump, 0.0
        self.elapsed += seconds
        return event.is_set()


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def supervise(tmp_path: Path, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch) -> Callable[[Advance], None]:
    """Run a supervisor with one job until the stop file exists; `advance` stands for the job's life."""
    store = Store(tmp_path, "me")
    store.create(lambda job: ({}, Created(id=job, user="me", name="n")), at=clock.now())
    store.supervisor.mkdir(parents=True)

    def run(advance: Advance) -> None:
        monkeypatch.setattr(JobController, "advance", advance)
        clock.supervisor = Supervisor(store, clock)
        assert clock.supervisor.run() == 0

    return run


def stop(controller: JobController) -> float:
    """Stop the supervisor; it may look for that only after the turn, so the next one is not due at once."""
    (controller.store.supervisor / "stop").touch()
    return scheduler.LONGEST_DELAY


@pytest.mark.system
def test_a_job_gets_turns_however_often_they_raise(supervise, clock):
    turns: list[float] = []

    def advance(controller: JobController) -> float:
        turns.append(clock.elapsed)
        if len(turns) > 1200:
            return stop(controller)
        raise OSError(28, "No space left on device")

    supervise(advance)
    pauses = [later - earlier for earlier, later in itertools.pairwise(turns)]
    assert max(pauses) < 6, "the pauses are capped"
    assert pauses[0] < pauses[-1]


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), RecursionError()])
def test_no_exception_costs_a_job_its_next_turn(supervise, error):
    raised = []

    def advance(controller: JobController) -> float:
        if raised:
            return stop(controller)
        raised.append(error)
        raise error

    supervise(advance)
    assert raised == [error]


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("can't start new thread")])
@pytest.mark.parametrize(
    ("owner", "name"),
    [(TurnPool, "submit"), (TurnPool, "wake"), (scheduler, "handle_error"), (Supervisor, "_schedule")],
)
def test_a_failure_while_a_turn_begins_or_ends_costs_no_job_its_next_turn(supervise, monkeypatch, owner, name, error):
    """Also none of what handles the errors of others can rely on having memory."""
    turns, failures, real = [], [], getattr(owner, name)

    def fails(*args: object, **kwargs: object) -> object:
        if turns and len(failures) < 3:
            failures.append(1)
            raise error
        return real(*args, **kwargs)

    def advance(controller: JobController) -> float:
        turns.append(1)
        if len(failures) == 3:
            return stop(controller)
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(owner, name, fails)
    supervise(advance)
    assert len(failures) == 3


@pytest.mark.parametrize("jump", [-3600.0, 3600.0, -1e9])
def test_setting_the_clock_delays_no_turn(supervise, clock, jump):
    turns: list[float] = []

    def advance(controller: JobController) -> float:
        turns.append(clock.elapsed)
        if len(turns) == 5:
            return stop(controller)
        clock.jump = jump  # once the next turn is scheduled
        return 5.0

    supervise(advance)
    assert turns[-1] == pytest.approx(20, abs=1)


def test_a_waiting_job_gets_a_turn_every_minute(supervise, clock):
    """After a suspend of the machine, the wall time for which a job waits may come before the monotonic delay."""
    turns: list[float] = []

    def advance(controller: JobController) -> float:
        turns.append(clock.elapsed)
        return stop(controller) if len(turns) == 3 else 1e6

    supervise(advance)
    assert turns[-1] <= 2 * (scheduler.LONGEST_DELAY + 1)


def test_a_job_that_is_created_while_the_supervisor_ends_is_driven(supervise, tmp_path, clock, monkeypatch):
    """A command that finds the lock held starts no supervisor: the one that releases it looks once more."""
    released, driven = Lock.release, []

    def release(lock: Lock) -> None:
        if lock.path == Store(tmp_path, "me").supervisor / "lock" and driven == ["000001"]:
            Store(tmp_path, "me").create(lambda job: ({}, Created(id=job, user="me", name="n")), at=clock.now())
        released(lock)

    def advance(controller: JobController) -> float | None:
        driven.append(controller.record.id)
        return None if controller.record.id == "000001" else stop(controller)

    monkeypatch.setattr(Lock, "release", release)
    monkeypatch.setattr(scheduler.Supervisor, "_adopt", _adopt_once(scheduler.Supervisor._adopt, driven))
    supervise(advance)
    assert driven == ["000001", "000002"]


def test_a_job_whose_lock_is_held_is_driven_once_it_is_free(supervise, tmp_path, clock, monkeypatch):
    """The command that creates a job holds its lock, and wakes the supervisor before it releases it."""
    creating = Store(tmp_path, "me").record("000001")
    assert creating.acquire()
    wait, waits = clock.wait, itertools.count()

    def release_later(event: threading.Event, seconds: float) -> bool:
        if next(waits) == 5:
            creating.lock.release()
        return wait(event, seconds)

    monkeypatch.setattr(clock, "wait", release_later)
    driven: list[str] = []

    def advance(controller: JobController) -> float | None:
        driven.append(controller.record.id)
        return stop(controller)

    supervise(advance)
    assert driven == ["000001"]


def _adopt_once(adopt: Callable[..., None], driven: list[str]) -> Callable[..., None]:
    """Stand for a job that is done: its events say otherwise here."""

    def adopt_if_new(supervisor: Supervisor, job: str, record: object) -> None:
        if job not in driven:
            adopt(supervisor, job, record)

    return adopt_if_new


def test_blocked_turns_cost_no_other_job_its_turn(clock):
    gate, ended = threading.Event(), threading.Event()
    pool = TurnPool(lambda job: ended.set() if job == "quick" else gate.wait(60) and None, clock)
    for number in range(THREADS):
        pool.submit(f"blocked-{number}")
        pool.wake(1)
    while len(pool.running()) < THREADS:
        threading.Event().wait(0.01)
    pool.submit("quick")
    pool.wake(1)
    assert not ended.wait(0.2)
    clock.elapsed += BLOCKED_AFTER + 1
    assert len(pool.blocked()) == THREADS
    assert ended.wait(60)
    gate.set()


def test_a_turn_that_lasts_does_not_delay_those_that_wait_for_its_thread(clock):
    gate, taken = threading.Event(), []
    pool = TurnPool(lambda job: gate.wait(60) and None if job == "long" else taken.append(job), clock)
    for job in ("long", "short", "last"):
        pool.submit(job)
    pool.wake(1)
    while not pool.running():
        threading.Event().wait(0.01)
    assert taken == [], "one thread takes them one after another"
    while taken != ["short", "last"]:
        pool.wake(0)
        threading.Event().wait(0.01)
    gate.set()


def test_a_turn_that_cannot_be_noted_for_lack_of_memory_is_taken(clock, monkeypatch):
    """Else its job would count as one whose turn has begun, and would get none until the next process."""
    taken = threading.Event()

    def fail(_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(turns_module, "tracked", fail)
    pool = TurnPool(lambda _: taken.set(), clock)
    pool.submit("000001")
    pool.wake(1)
    assert taken.wait(60)
