"""The end of a job's output, for the monitor: read from the files on this machine, a piece at a time."""

from __future__ import annotations

from pathlib import Path

from tpux import TpuxError, api
from tpux.api.text import printable

TAIL = 64 * 1024
"""Bytes at the end of a file that are looked at."""


def last_line(path: Path) -> str:
    """Return the last line of a file that is not empty; of a progress bar its last state. "" if there is none."""
    return next((line for line in reversed(tail(path, 4096)) if line.strip()), "")


def tail(path: Path, size: int = TAIL) -> list[str]:
    """Return the lines at the end of a file, without what could control a terminal.

    A line that a program has drawn over with a carriage return is its last state.
    """
    try:
        with path.open("rb") as file:
            end = file.seek(0, 2)
            file.seek(max(0, end - size))
            data = file.read(size)
    except OSError:
        return []
    lines = data.decode(errors="replace").split("\n")
    if end > size:
        del lines[0]  # a part of one
    shown = [printable(line.rstrip("\r").rpartition("\r")[2]) for line in lines]
    return shown[:-1] if shown and not shown[-1] else shown


def files(job: str) -> dict[int, Path]:
    """Return the files with the output of a job's last attempt, by worker; none if the job was deleted."""
    try:
        return api.outputs(job)
    except (TpuxError, OSError):
        return {}
