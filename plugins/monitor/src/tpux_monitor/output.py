"""The end of a job's output, for the monitor: read from the files on this machine, a piece at a time."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from tpux import TpuxError, api
from tpux.api.text import newest_times, printable, start_of

TAIL = 64 * 1024
"""Bytes at the end of a file that are looked at."""


def last_line(path: Path) -> str:
    """Return the last line of a file that is not empty; of a progress bar its last state. "" if there is none."""
    return next((line for line in reversed(tail(path, 4096)) if line.strip()), "")


def tail(
    path: Path, size: int = TAIL, *, since: float | None = None, head: bool = False, times: bool = False
) -> list[str]:
    """Return the lines at the end of a file, without what could control a terminal.

    A line that a program has drawn over with a carriage return is its last state.

    Args:
        path: the file.
        size: bytes that are looked at.
        since: only what was fetched after this time.
        head: its beginning in place of its end.
        times: each line begins with the time at which it was fetched.
    """
    try:
        with path.open("rb") as file:
            last = 0 if head else max(0, file.seek(0, 2) - size)
            start = last if since is None else max(last, start_of(path, None, since))
            file.seek(start)
            data = file.read(size)
    except OSError:
        return []
    lines = data.split(b"\n")
    if last and start == last:
        start += len(lines.pop(0)) + 1  # a part of one
    if lines and not lines[-1]:
        lines.pop()
    shown = [printable(line.decode(errors="replace").rstrip("\r").rpartition("\r")[2]) for line in lines]
    return [f"{at} {line}" for at, line in zip(_times(path, start, lines), shown, strict=True)] if times else shown


def _times(path: Path, offset: int, lines: Sequence[bytes]) -> Iterator[str]:
    """Yield when each of the lines that begin at an offset was fetched."""
    entries: list[tuple[float, int]] = []
    with suppress(FileNotFoundError):
        for entry in newest_times(path):
            entries.append(entry)
            if entry[1] <= offset:
                break
    at = entries[-1][0] if entries else None
    for line in lines:
        while entries and entries[-1][1] <= offset:
            at = entries.pop()[0]
        yield time.strftime("%H:%M:%S", time.localtime(at)) if at else "-" * 8
        offset += len(line) + 1


def files(job: str) -> dict[int, Path]:
    """Return the files with the output of a job's last attempt, by worker; none if the job was deleted."""
    try:
        return api.outputs(job)
    except (TpuxError, OSError):
        return {}
