"""Renames survive a crash of the machine: the directory is synced after each."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tpux.errors import TpuxError
from tpux.model.events import Created
from tpux.store import Store, files


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """The renames and syncs, in their order."""
    made: list[tuple[str, str]] = []
    sync, rename, replace = os.fsync, Path.rename, Path.replace

    def synced(handle: int) -> None:
        made.append(("sync", str(Path(f"/proc/self/fd/{handle}").readlink())))
        sync(handle)

    def renamed(source: Path, target: Path) -> Path:
        made.append(("rename", str(target)))
        return rename(source, target)

    def replaced(source: Path, target: Path) -> Path:
        made.append(("rename", str(target)))
        return replace(source, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "rename", renamed)
    monkeypatch.setattr(Path, "replace", replaced)
    return made


def test_a_replaced_file(tmp_path: Path, calls: list[tuple[str, str]]) -> None:
    files.write_atomic(tmp_path / "x", b"1")
    assert calls[-2:] == [("rename", str(tmp_path / "x")), ("sync", str(tmp_path))]
    calls.clear()
    files.write_atomic(tmp_path / "x", b"1", durable=False)
    assert calls == [("rename", str(tmp_path / "x"))]


def test_a_created_job(tmp_path: Path, calls: list[tuple[str, str]]) -> None:
    store = Store(tmp_path, "ann")
    created = Created(id="000001", user="ann", name="x")
    record = store.create(lambda _: ({"configs/a": (b"1", 0o600)}, created), at=1.0)
    index = calls.index(("rename", str(record.directory)))
    draft = str(record.directory.with_name(".new-000001"))
    assert calls[index - 1] == ("sync", draft)
    assert calls[index + 1] == ("sync", str(record.directory.parent))
    assert ("sync", f"{draft}/configs") in calls[:index]
    assert ("sync", f"{draft}/events.jsonl") in calls[:index]


def test_a_job_is_not_removed_with_what_is_mounted_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A removal would delete the content of a bucket. The kernel writes a space in a path as \\040."""
    store = Store(tmp_path / "home", "me")
    record = store.create(lambda _: ({}, Created(id="000001", user="me", name="a")), at=0.0)
    table = tmp_path / "mountinfo"
    table.write_text(f"36 35 0:42 / {record.directory}/machines/a\\040b rw - fuse.gcsfuse b rw\n")
    monkeypatch.setattr(files, "MOUNTS", table)
    with pytest.raises(TpuxError, match=f"a file system is mounted at {record.directory}/machines/a b"):
        store.remove(record)
    assert record.directory.is_dir()
    table.write_text("")
    store.remove(record)
    assert not record.directory.exists()
