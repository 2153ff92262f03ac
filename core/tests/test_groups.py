"""Groups of jobs and the jobs that wait for others, by what is stored of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tpux.model.events import AllocationRequested, Created, StateChanged
from tpux.store import Store, groups
from tpux.store.record import Record


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
