"""A store in another directory than it was made in: no claims, and `become_copy` at any interruption."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tpux.clock import SystemClock
from tpux.lifecycle import copied_store
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


class Died(BaseException):
    """The process has been killed."""


def test_an_interrupted_copy_is_out_of_use_until_it_is_repeated(
    copy: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = copy.id
    write, append = files.write_atomic, files.append
    for step in range(100):
        left = [step]

        def dies(real: object, *args: object, left: list[int] = left, **options: object) -> None:
            if not left[0]:
                raise Died
            left[0] -= 1
            real(*args, **options)  # type: ignore[operator]

        home = tmp_path / f"copy-{step}"
        shutil.copytree(copy.home, home)
        monkeypatch.setattr(files, "write_atomic", lambda *args, dies=dies, **options: dies(write, *args, **options))
        monkeypatch.setattr(files, "append", lambda *args, dies=dies, **options: dies(append, *args, **options))
        died = False
        try:
            copied_store.become_copy(Store(home, "ann"), SystemClock(), lambda _: None)
        except Died:
            died = True
        monkeypatch.setattr(files, "write_atomic", write)
        monkeypatch.setattr(files, "append", append)
        store = Store(home, "ann")
        if died:
            assert store.id == original
            with pytest.raises(MisplacedStoreError):
                store.require_in_place()
            if step:
                with pytest.raises(MisplacedStoreError, match="interrupted"):
                    store.move_here()
            copied_store.become_copy(store, SystemClock(), lambda _: None)
        store.require_in_place()
        assert store.id != original
        for record in store.records():
            state = record.refresh()
            assert (state.state, state.requested, state.done) == ("stopped", False, True)
            assert not requests.pending(record)
            assert f'"offset": {record.offset},' in (record.directory / "listeners/loud.json").read_text()
        assert not list((store.shared / "machines").iterdir())
        if not died:
            assert step > 5
            return
    pytest.fail("it does not end")
