"""The times of the last fetches of an output, which are recorded once their order with another event matters."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from tpux.model.program_output import newest_times
from tpux.store import output, recent_fetches
from tpux.store.recent_fetches import KEPT, RecentFetches


def fetch(log: Path, fetches: RecentFetches, at: float, text: bytes) -> None:
    """Append output as a poll does."""
    fetches.add(log, at)
    output.record_time(log, at)
    with log.open("ab") as file:
        file.write(text)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "command_worker_0.log"
    path.touch()
    return path


def times(log: Path) -> list[tuple[float, int]]:
    return [*newest_times(log)][::-1]


def test_fetches_before_the_entry_of_each_10_s_are_recorded_too(log: Path) -> None:
    fetches = RecentFetches()
    log.with_suffix(".times").write_text("1.00 0\n")
    for at in (5.0, 9.9, 10.2):
        fetch(log, fetches, at, b"a line\n")
    fetches.record(log)
    assert times(log) == [(1.0, 0), (5.0, 0), (9.9, 7), (10.2, 14)]
    fetches.record(log)
    fetch(log, fetches, 11.0, b"more\n")
    fetches.record(log)
    assert times(log) == [(1.0, 0), (5.0, 0), (9.9, 7), (10.2, 14), (11.0, 21)]


def test_older_entries_stay_and_a_torn_one_goes(log: Path) -> None:
    fetches, earlier = RecentFetches(), [(float(number), 10 * number) for number in range(1000)]
    log.with_suffix(".times").write_text("".join(f"{at:.2f} {size}\n" for at, size in earlier) + "1000.0")
    log.write_bytes(b"x" * 10_000)
    for number in range(KEPT + 3):
        fetches.add(log, 1000.0 + number)
        with log.open("ab") as file:
            file.write(b"y" * 10)
    fetches.record(log)
    assert times(log)[:1000] == earlier
    assert times(log)[1000:] == [(1000.0 + number, 10_000 + 10 * number) for number in range(3, KEPT + 3)]


def test_what_a_full_disk_has_refused_is_recorded_by_the_next_call(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fetches = RecentFetches()
    fetch(log, fetches, 5.0, b"a line\n")
    fetches.add(log, 6.0)

    def refuse(*_: object, **__: object) -> bytes:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(recent_fetches, "_lines", refuse)
        with pytest.raises(OSError, match="No space"):
            fetches.record(log)
    assert times(log) == [(5.0, 0)]
    fetches.record(log)
    assert times(log) == [(5.0, 0), (6.0, 7)]
