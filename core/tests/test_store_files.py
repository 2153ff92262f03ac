"""Renames survive a crash of the machine: the directory is synced after each."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from tpux.errors import TpuxError
from tpux.model.events import Created
from tpux.store import Store, files
from tpux.store.files import JsonFile


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


@dataclass(frozen=True)
class Note:
    """What the small files of these tests hold."""

    text: str
    numbers: tuple[int, ...] = ()


def test_a_json_file_holds_a_dataclass(tmp_path: Path) -> None:
    file = JsonFile(tmp_path / "note.json", Note)
    assert file.load() is None
    file.save(Note("a", (1, 2)))
    assert file.load() == Note("a", (1, 2))
    file.remove()
    assert file.load() is None


@pytest.mark.parametrize("content", [b"", b'{"text": "a', b"[]", b"{}", b'{"text": 1}', b"\xff"])
def test_a_json_file_that_is_torn_or_of_another_version_holds_nothing(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "note.json").write_bytes(content)
    assert JsonFile(tmp_path / "note.json", Note).load() is None


def test_a_json_file_is_written_only_if_it_changes(tmp_path: Path, calls: list[tuple[str, str]]) -> None:
    file = JsonFile(tmp_path / "note.json", Note)
    file.save(Note("a"))
    written = len(calls)
    file.save(Note("a"))
    assert len(calls) == written
    file.save(Note("b"))
    assert len(calls) == 2 * written


def test_a_json_file_is_not_written_into_a_directory_that_was_removed(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        JsonFile(tmp_path / "gone" / "note.json", Note).save(Note("a"))
