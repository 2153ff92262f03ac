"""Groups of jobs and the jobs that wait for others, by what is stored of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tpux.clock import SystemClock
from tpux.model.events import AllocationRequested, Created, StateChanged
from tpux.model.states import RequestAction
from tpux.store import Store, groups, requests
from tpux.store.record import Record
from tpux.supervisor.scheduler import Supervisor


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "home", "me")


def create(store: Store) -> Record:
    """Create a pending job of the group `g`."""
    resolved = json.dumps({"config": {"job": {"group": {"name": "g"}}}}).encode()
    return store.create(
        lambda job: ({"resolved.json": (resolved, 0o600)}, Created(id=job, user="me", name="n")), at=0.0
    )


def fail(record: Record, *, release_at: float | None) -> None:
    assert record.acquire()
    record.write(StateChanged(to="provisioning"), 1.0)
    record.write(AllocationRequested(name="x", allocator="local"), 2.0)
    record.write(StateChanged(to="failed", why="x", release_at=release_at), 3.0)
    record.lock.release()


def enter(store: Store, record: Record, limit: int = 1) -> int | None:
    return groups.enter(store, "g", limit, record.id)


@pytest.mark.parametrize(("release_at", "ahead"), [(9.0, 0), (None, None)])
def test_an_ended_job_counts_until_its_machines_are_released(
    store: Store, release_at: float | None, ahead: int | None
) -> None:
    """Those that a user keeps without an end do not count: the group would never go on."""
    first, second = create(store), create(store)
    assert enter(store, first) is None
    fail(first, release_at=release_at)
    assert enter(store, second) == ahead


def test_a_job_that_starts_at_once_takes_a_place(store: Store) -> None:
    first, second, third = create(store), create(store), create(store)
    assert enter(store, first) is None
    assert enter(store, second) == 0
    assert groups.enter(store, "g", 1, second.id, at_once=True) is None
    assert enter(store, third, limit=2) == 0


def test_a_job_that_cannot_be_read_keeps_its_place_and_delays_no_other(store: Store) -> None:
    first, second, third, fourth = (create(store) for _ in range(4))
    assert enter(store, first) is None
    assert enter(store, second) == 0
    for unreadable in (first, second):
        unreadable.events_path.write_text("{}\n" * 2)
        (unreadable.directory / "state.json").unlink()
    assert enter(store, third) == 1
    assert enter(store, third, limit=2) is None
    assert enter(store, fourth, limit=2) == 0


def test_a_job_that_leaves_is_no_longer_waited_for(store: Store) -> None:
    first, second, third = create(store), create(store), create(store)
    assert enter(store, first) is None
    assert enter(store, second) == 0
    assert enter(store, third) == 1
    groups.leave(store, "g", first.id)
    assert enter(store, third) == 1
    groups.leave(store, "g", second.id)
    assert enter(store, third) is None
    groups.leave(store, "none", first.id)


# --- which jobs are open --------------------------------------------------------------------------


def marks(store: Store) -> set[str]:
    return {path.name for path in (store.shared / "open" / "me").glob("0*")}


@pytest.mark.parametrize(("action", "is_open"), [("resume", True), ("rerun", True), ("setup", True), ("stop", False)])
def test_a_job_that_is_to_start_again_is_open_before_a_supervisor_has_read_that(
    store: Store, action: RequestAction, is_open: bool
) -> None:
    record = create(store)
    fail(record, release_at=None)
    (store.shared / "open" / "me" / record.id).unlink(missing_ok=True)
    requests.write(record, action)
    assert marks(store) == ({record.id} if is_open else set())


def test_a_supervisor_marks_an_ended_job_that_holds_machines(store: Store) -> None:
    record = create(store)
    fail(record, release_at=None)
    (store.shared / "open" / "me" / record.id).unlink()
    store.supervisor.mkdir(parents=True, exist_ok=True)
    assert Supervisor(store, SystemClock()).run() == 0
    assert marks(store) == {record.id}


def test_a_higher_priority_comes_first_and_is_kept_while_another_job_looks(store: Store) -> None:
    first, second, third = create(store), create(store), create(store)
    assert enter(store, first) is None
    assert enter(store, second) == 0
    assert groups.enter(store, "g", 1, third.id, priority=1) == 0
    assert enter(store, second) == 1
    fail(first, release_at=None)
    assert enter(store, second) == 1
    assert groups.enter(store, "g", 1, third.id, priority=1) is None
