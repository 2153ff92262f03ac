"""Ranges of a log: whole characters, nothing twice, and nothing left out without saying so."""

from __future__ import annotations

import pytest

from tpux_progress.patterns import PATTERNS
from tpux_web import curves, logs
from tpux_web.logs import BEHIND, TAIL, Follower, read_before


def follow(path, offset: int = 0) -> Follower:
    return Follower(1, 1, 0, offset, path)


def test_a_follower_reads_each_byte_once(tmp_path):
    path = tmp_path / "log"
    path.write_bytes("one\nzwei ä".encode())
    follower = follow(path)
    first = follower.read()
    assert (first["text"], first["start"], first["next"]) == ("one\nzwei ä", 0, 11)
    assert follower.read() is None
    with path.open("ab") as file:
        file.write("…".encode()[:2])
    assert follower.read() is None, "half a character"
    with path.open("ab") as file:
        file.write("…".encode()[2:] + b"\n")
    assert follower.read()["text"] == "…\n"
    assert follow(path, 4).read()["text"] == "zwei ä…\n"


def test_the_end_comes_first_and_what_is_before_when_asked_for(tmp_path):
    path = tmp_path / "log"
    lines = [f"line {number}" for number in range(20_000)]
    path.write_text("\n".join(lines) + "\n")
    end = follow(path, -1).read()
    assert end["text"].startswith("line ")
    assert end["start"] > path.stat().st_size - TAIL
    got, start = end["text"], end["start"]
    while start:
        before = read_before(path, start)
        assert before["next"] == start
        got, start = before["text"] + got, before["start"]
    assert got.splitlines() == lines


def test_a_page_that_is_far_behind_is_told_how_much_it_misses(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b"x" * 99 + b"\n" + b"y" * (BEHIND + 10) + b"\nlast\n")
    got = follow(path, 100).read()
    assert got["skipped"] == got["start"] - 100 > 0
    assert got["text"].endswith("last\n")


def test_a_log_that_has_lost_its_end_is_shown_anew(tmp_path):
    path = tmp_path / "log"
    path.write_text("short\n")
    got = follow(path, 1000).read()
    assert (got["anew"], got["text"], got["skipped"]) == (True, "short\n", 0)


@pytest.mark.parametrize("number", ["-1", "1e3", "²", "", "1" * 16])
def test_numbers_are_numbers(number):
    from tpux_web.stream import Streams

    with pytest.raises(ValueError, match="not a number"):
        Streams().topic(f"job/{number}")


def test_a_curve_has_each_line_of_a_small_log_and_samples_of_a_large_one(tmp_path):
    path = tmp_path / "log"
    line = "step {0} loss {1:.4f}\n"
    path.write_text("".join(line.format(step, 9 - step / 1000) for step in range(1000)) + "step 10")
    samples = curves.Samples()
    samples.read(path, PATTERNS)
    assert [point for _, points in sorted(samples.points.items()) for point in points] == [
        (step, round(9 - step / 1000, 4)) for step in range(1000)
    ]
    with path.open("a") as file:
        file.write("00 loss 1.5\n" + "".join(line.format(step, 1) for step in range(1001, 100_000)))
    samples.read(path, PATTERNS)
    assert samples.stride > curves.PIECE
    assert len(samples.points) <= curves.SAMPLES
    steps = [point[0] for _, points in sorted(samples.points.items()) for point in points]
    assert steps == sorted(set(steps))
    assert steps[-1] > 98_000


def test_outputs_that_are_not_there_are_none(tmp_path, monkeypatch):
    monkeypatch.setenv("TPUX_HOME", str(tmp_path))
    assert logs.find(7, 1, 0) is None
    assert logs.workers(7, 3) == {}
