"""The end of a job's output, for the monitor: read from the files on this machine, a piece at a time."""

from __future__ import annotations

from pathlib import Path

from tpux import TpuxError, api
from tpux.api.text import printable, start_of

TAIL = 64 * 1024
"""Bytes at the end of a file that are looked at."""


def last_line(path: Path) -> str:
    """Return the last line of a file that is not empty; of a progress bar its last state. "" if there is none."""
    return next((line for line in reversed(tail(path, 4096)) if line.strip()), "")


def tail(path: Path, size: int = TAIL, *, since: float | None = None, head: bool = False) -> list[str]:
    """Return the lines at the end of a file, without what could control a terminal.

    A line that a program has drawn over with a carriage return is its last state.

    Args:
        path: the file.
        size: bytes that are looked at.
        since: only what was fetched after this time.
        head: its beginning in place of its end.
    """
    try:
        with path.open("rb") as file:
            last = 0 if head else max(0, file.seek(0, 2) - size)
            start = last if since is None else max(last, start_of(path, None, since))
            file.seek(start)
            data = file.read(size)
    except OSError:
        return []
    lines = data.decode(errors="replace").split("\n")
    if last and start == last:
        del lines[0]  # a part of one
    shown = [printable(line.rstrip("\r").rpartition("\r")[2]) for line in lines]
    return shown[:-1] if shown and not shown[-1] else shown


def files(job: str) -> dict[int, Path]:
    """Return the files with the output of a job's last attempt, by worker; none if the job was deleted."""
    try:
        return api.outputs(job)
    except (TpuxError, OSError):
        return {}
