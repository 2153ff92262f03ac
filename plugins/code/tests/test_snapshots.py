"""Snapshots on this machine: shared between jobs, immutable, and removed when nothing uses them."""

from __future__ import annotations

import os
import tarfile
import time
from pathlib import Path

import pytest

from tpux import TpuxError
from tpux_code.files import choose
from tpux_code.snapshots import Snapshots


def stored(home: Path) -> int:
    """Return how many files the store has for contents."""
    return len(list(home.glob("code/objects/*/*")))


def test_the_same_files_give_the_same_snapshot_and_are_stored_once(tmp_path, home):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x").write_text("1")
        (tmp_path / name / "same").write_text("1")
    snapshots = Snapshots()
    first, second = snapshots.make(tmp_path / "a", ["x", "same"]), snapshots.make(tmp_path / "b", ["same", "x"])
    assert (first, stored(home)) == (second, 1)
    (tmp_path / "b/x").write_text("2")
    assert snapshots.make(tmp_path / "b", ["same", "x"]).id != first.id
    assert stored(home) == 2


def test_an_archive_has_the_changed_files_only(tmp_path, home):
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "kept").write_text("1")
    (tree / "changed").write_text("1")
    (tree / "program").write_text("1")
    snapshots = Snapshots()
    base = snapshots.make(tree, choose(tree, [], []))
    (tree / "changed").write_text("22")
    (tree / "program").chmod(0o755)
    (tree / "link").symlink_to("kept")
    (tree / "\udcff").write_text("3")
    wanted = snapshots.make(tree, choose(tree, [], []))
    with tarfile.open(snapshots.archive(wanted, base)) as tar:
        modes = {entry.name: (entry.mode, entry.size, entry.linkname) for entry in tar}
    assert modes == {
        "changed": (0o644, 2, ""),
        "program": (0o755, 1, ""),
        "link": (0o644, 0, "kept"),
        "\udcff": (0o644, 1, ""),
    }


def test_a_file_has_the_same_time_in_all_snapshots_until_its_content_changes(tmp_path, home):
    """Python takes a .pyc file for up to date if its source has the same size and time."""
    (tmp_path / "kept").write_text("1")
    snapshots, times = Snapshots(), []
    for content in ("1", "2"):
        (tmp_path / "changed").write_text(content)
        with tarfile.open(snapshots.archive(snapshots.make(tmp_path, ["changed", "kept"]), None)) as tar:
            times.append({entry.name: entry.mtime for entry in tar})
    assert times[0]["kept"] == times[0]["changed"] == times[1]["kept"] != times[1]["changed"]
    year_2000, now = 946_684_800, time.time()
    assert all(year_2000 < each < now for each in times[1].values())


def test_a_file_that_cannot_be_read_is_named(tmp_path, home):
    with pytest.raises(TpuxError, match="a file cannot be read") as caught:
        Snapshots().make(tmp_path, ["missing"])
    assert caught.value.where == str(tmp_path / "missing")


def test_damage_is_noticed_and_another_snapshot_of_the_file_repairs_it(tmp_path, home):
    (tmp_path / "x").write_text("123")
    snapshots = Snapshots()
    made = snapshots.make(tmp_path, ["x"])
    next(home.glob("code/objects/*/*")).write_bytes(b"")
    with pytest.raises(TpuxError, match="the stored code is damaged: x: its content has another size"):
        snapshots.archive(made, None)
    with pytest.raises(TpuxError, match="the stored code is damaged"):
        snapshots.load("0123456789abcdef")
    assert snapshots.make(tmp_path, ["x"]) == made
    with tarfile.open(snapshots.archive(made, None)) as tar:
        assert tar.extractfile("x").read() == b"123"


def test_its_files_are_those_of_the_snapshot_and_their_times_are_set_when_they_are_used_again(tmp_path, home):
    snapshots, ids = Snapshots(), []
    for name in ("first", "second"):
        (tmp_path / "x").write_text(name)
        (tmp_path / "same").write_text("1")
        ids.append(snapshots.make(tmp_path, ["same", "x"]).id)
    for snapshot in snapshots.find(ids):
        snapshots.archive(snapshot, None)
    first, second = (set(snapshots.stored_files(one)) for one in ids)
    there = {path for path in home.glob("code/**/*") if path.is_file()}
    assert there - first - second == {home / "code/lock"}
    assert (len(first), len(first & second)) == (4, 1)
    for path in there:
        os.utime(path, (0, 0))
    snapshots.make(tmp_path, ["same", "x"])
    touched = {path for path in there if path.stat().st_mtime}
    assert touched == {path for path in second if path.parent.name != "archives"}
    assert snapshots.stored_files("0123456789abcdef") == []
