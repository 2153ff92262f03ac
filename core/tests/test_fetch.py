"""Where the next poll of a program's output begins, if the program or a crash of its machine has shortened it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from tpux.lifecycle.run import silence_limit
from tpux.remote.output import Poller, fetch
from tpux.remote.process import RemoteProcess

RUN = RemoteProcess("store-user-000001-w0", 1, "command")
LONG = b"".join(b"step %d\n" % number for number in range(1000))
OTHER = LONG.replace(b"step", b"Step")


class Worker:
    """A worker whose program's output is given."""

    def __init__(self) -> None:
        self.output = b""
        self.code: bytes | None = None
        self.exchanges = self.asked = 0

    def read(self, *pieces: tuple[str, int]) -> list[bytes | None]:
        self.exchanges += 1
        self.asked = dict(pieces)[RUN.output]
        contents = {RUN.exit: self.code}
        return [self.output[offset:] if path == RUN.output else contents.get(path) for path, offset in pieces]


@pytest.mark.parametrize(
    ("first", "second", "fetched"),
    [
        pytest.param(b"", b"one\n", b"one\n", id="nothing before"),
        pytest.param(b"one\n", b"one\n", b"", id="nothing new"),
        pytest.param(b"one\n", b"one\ntwo\n", b"two\n", id="short"),
        pytest.param(LONG, LONG + b"on\n", b"on\n", id="long"),
        pytest.param(LONG, b"on\n", b"on\n", id="truncated"),
        pytest.param(LONG, OTHER[:6000], OTHER[:6000], id="truncated, then much"),
        pytest.param(LONG, OTHER, OTHER, id="truncated, then much, as much"),
        pytest.param(LONG, OTHER + LONG, OTHER + LONG, id="truncated, then much, more"),
        pytest.param(b"one\n", b"two\n", b"two\n", id="truncated, then as much"),
        pytest.param(b"one\n", b"two\nthree\n", b"two\nthree\n", id="truncated, then more"),
        pytest.param(LONG, LONG[:6000], b"", id="its end was lost in a crash"),
        pytest.param(LONG, LONG[:-9] + b"x" * 9 + b"on\n", b"on\n", id="its end was overwritten"),
    ],
)
def test_what_is_fetched(tmp_path, first, second, fetched):
    log, worker = tmp_path / "log", Worker()
    for worker.output, expected in ((first, first), (second, fetched), (second, b"")):
        status = fetch(worker, RUN, log)
        assert status.output == expected
        with log.open("ab") as file:
            file.write(status.output)
    assert Path(log).read_bytes() == first + fetched


@pytest.mark.parametrize(
    "second",
    [
        pytest.param(LONG, id="long"),
        pytest.param(OTHER, id="truncated"),
        pytest.param(LONG[:-9] + b"x" * 9, id="its end was overwritten"),
    ],
)
def test_a_poll_without_news_is_one_exchange(tmp_path, second):
    log, worker = tmp_path / "log", Worker()
    log.touch()
    for worker.output in (LONG, second, second):
        before = worker.exchanges
        with log.open("ab") as file:
            file.write(fetch(worker, RUN, log).output)
    assert worker.exchanges == before + 1


def test_a_program_that_overwrites_its_output_and_then_truncates_it(tmp_path):
    log, worker = tmp_path / "log", Worker()
    for worker.output in (LONG, LONG[:-9] + b"x" * 9, b"one\n", OTHER, OTHER[:-1] + LONG):
        with log.open("ab") as file:
            file.write(fetch(worker, RUN, log).output)
    assert log.read_bytes() == LONG + b"one\n" + OTHER + LONG[1:]


def test_what_is_known_of_a_silent_program_is_seldom_read_again(tmp_path):
    log, worker = tmp_path / "log", Worker()
    log.write_bytes(LONG)
    worker.output = LONG
    again = []
    for silent in range(100):
        fetch(worker, RUN, log, silent=silent)
        if worker.asked < len(LONG):
            again.append(silent)
    assert again == [0, 1, 2, 4, 8, 16, 32, 48, 64, 80, 96]


@pytest.mark.parametrize(
    ("second", "fetched"),
    [
        pytest.param(OTHER + LONG, OTHER + LONG, id="truncated"),
        pytest.param(LONG + b"on\n", b"on\n", id="not truncated"),
    ],
)
def test_what_a_silent_program_writes_is_compared_before_it_is_kept(tmp_path, second, fetched):
    log, worker = tmp_path / "log", Worker()
    log.write_bytes(LONG)
    worker.output = second
    assert fetch(worker, RUN, log, silent=3).output == fetched


def test_the_end_of_a_silent_program_is_compared(tmp_path):
    log, worker = tmp_path / "log", Worker()
    log.write_bytes(LONG)
    worker.output, worker.code = b"one\n", b"0"
    assert fetch(worker, RUN, log, silent=3).output == b"one\n"


@pytest.mark.parametrize(
    ("stalled_after", "finished_by", "silence", "expected"),
    [
        (None, [], 1e6, False),
        (60.0, [], 27.0, False),
        (60.0, [], 29.0, True),
        (60.0, ["wandb"], 15.0, True),
        (10.0, [], 0.5, True),
        (10.0, [], float("-inf"), False),
    ],
)
def test_nothing_is_overlooked_before_a_program_counts_as_stalled(stalled_after, finished_by, silence, expected):
    watch = SimpleNamespace(poll_every=2.0, straggler_grace=45.0)
    job, command = SimpleNamespace(stalled_after=stalled_after), SimpleNamespace(finished_by=finished_by)
    limit = silence_limit(SimpleNamespace(job=job, watch=watch, command=command))
    assert Poller(SimpleNamespace(), watch.poll_every, limit, print).compares(silence) == expected
