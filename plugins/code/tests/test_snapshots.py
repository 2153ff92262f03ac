"""Snapshots on this machine: shared between jobs, immutable, and removed when nothing uses them."""

from __future__ import annotations

import subprocess
import sys
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


def make_in_another_process(directory: Path, end: str = "") -> subprocess.Popen[str]:
    """Start a process that makes a snapshot of the file x, prints its id, and ends when its input does."""
    code = f"""
import sys
from pathlib import Path
from tpux_code.snapshots import Snapshots
print(Snapshots().make(Path({str(directory)!r}), ["x"]).id, flush=True)
sys.stdin.read()
"""
    return subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_what_nothing_uses_is_removed_but_not_before_its_maker_has_ended(tmp_path, home):
    ids = []
    for content in ("used", "unused"):
        (tmp_path / "x").write_text(content)
        maker = make_in_another_process(tmp_path)
        ids.append(maker.stdout.readline().strip())
        maker.communicate()
    (tmp_path / "x").write_text("about to be used")
    maker = make_in_another_process(tmp_path)
    ids.append(maker.stdout.readline().strip())
    snapshots = Snapshots()
    for snapshot in snapshots.find(ids):
        snapshots.archive(snapshot, None)
    snapshots.remove_unused({ids[0]})
    assert [snapshot.id for snapshot in snapshots.find(ids)] == [ids[0], ids[2]]
    assert (stored(home), len(list(home.glob("code/archives/*")))) == (2, 2)
    maker.communicate()
    snapshots.remove_unused({ids[0]})
    assert [snapshot.id for snapshot in snapshots.find(ids)] == [ids[0]]
    assert stored(home) == 1
