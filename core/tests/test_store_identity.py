"""A store in another directory than it was made in: nothing is done with its jobs, until they are set aside."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tpux.model.events import AllocationRequested, Created, StateChanged
from tpux.store import Store, files, leases, requests
from tpux.store.identity import MisplacedStoreError
from tpux.supervisor import client, orphans


@pytest.fixture
def copy(tmp_path: Path) -> Store:
    """A copy of a store with two jobs that hold machines, one of which has a request and a lease."""
    store = Store(tmp_path / "home", "ann")
    for job in ("000001", "000002"):
        created = Created(id=job, user="ann", name="x", zone="z", plugins=("loud",), token="beef")
        record = store.create(lambda _, created=created: ({}, created), at=1.0)
        assert record.acquire()
        record.write(StateChanged(to="provisioning"), at=2.0)
        record.write(AllocationRequested(name=f"tpu-{job}", allocator="x"), at=3.0)
        record.lock.release()
    requests.write(record, "stop")
    (store.shared / "machines").mkdir()
    (store.shared / "machines/tpu.json").write_text("{}")
    shutil.copytree(store.home, tmp_path / "copy")
    return Store(tmp_path / "copy", "ann")


def test_a_copy_claims_nothing(copy: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Newer jobs of the original are unknown to it, so their TPUs would look like orphans."""
    monkeypatch.setenv("TPUX_HOME", str(copy.home))
    with pytest.raises(MisplacedStoreError):
        leases.store_id()
    started: list[str] = []
    monkeypatch.setattr(client, "start_process", lambda _, module: started.append(module))
    states = [record.state for record in copy.records()]
    orphans.search_in_background(copy, states)
    assert started == []
    copy.move_here()
    orphans.search_in_background(copy, states)
    assert started == ["tpux.supervisor.orphans"]
    assert leases.store_id() == copy.id


@pytest.mark.parametrize("step", ["write_atomic", "rename"])
@pytest.mark.parametrize("image", [False, True], ids=["copy", "image of a disk"])
def test_an_interrupted_copy_is_out_of_use_until_it_is_repeated(
    copy: Store, monkeypatch: pytest.MonkeyPatch, step: str, image: bool
) -> None:
    original, jobs = copy.id, sorted(path.name for path in copy.jobs.iterdir())
    if image:
        copy.move_here()  # it has the inode of its original
    real = getattr(files, step)

    def dies(path: Path, content: object, *rest: object, **options: object) -> None:
        if step == "rename" or original.encode() not in bytes(content):  # type: ignore[call-overload]
            raise KeyboardInterrupt
        real(path, content, *rest, **options)

    with monkeypatch.context() as patch:
        patch.setattr(files, step, dies)
        with pytest.raises(KeyboardInterrupt):
            copy.set_jobs_aside()
    again = Store(copy.home, "ann")
    with pytest.raises(MisplacedStoreError):
        again.require_in_place()
    aside = again.set_jobs_aside()
    again.require_in_place()
    assert again.id != original
    assert (list(again.records()), again.users()) == ([], [])
    assert sorted(path.name for path in aside.iterdir()) == jobs


def test_nothing_that_was_set_aside_before_is_overwritten(copy: Store) -> None:
    first = copy.set_jobs_aside()
    second = Store(copy.home, "ann")
    second.jobs.mkdir()
    (copy.home / "store.json").write_text((copy.home / "store.json").read_text().replace(second.id, first.name[-8:]))
    assert Store(copy.home, "ann").set_jobs_aside() != first
    assert list(first.iterdir())
