"""Where to begin to print the output of a program: its last lines, or what was fetched since a time.

`command_worker_N.times` beside a log has lines with a time, in seconds since the epoch, and the length that the log had
then. It may be lost or torn: then more of the output is printed.
"""

from __future__ import annotations

import os
from pathlib import Path

from tpux.store import files

INTERVAL = 10.0
"""Seconds between two entries at least, so that a day of output has at most 200 kB of them."""


_BLOCK = 1 << 20


def record_time(log: Path, at: float) -> None:
    """Record that output is about to be appended to a log, unless the last entry is recent.

    Args:
        log: the log.
        at: the current time.

    Raises:
        OSError: it could not be written.
    """
    times = log.with_suffix(".times")
    try:
        recent = 0 <= at - times.stat().st_mtime < INTERVAL
    except FileNotFoundError:
        recent = False
    if not recent:
        files.append_output(times, f"{at:.0f} {files.length(log)}\n".encode())


def offset_since(log: Path, at: float) -> int:
    """Return the offset in a log from which on it was fetched at this time or later, at most `INTERVAL` too early."""
    try:
        if log.stat().st_mtime < at:
            return files.length(log)
        lines = log.with_suffix(".times").read_text(encoding="ascii", errors="replace").splitlines()
    except FileNotFoundError:
        return 0
    entries = [line.split() for line in lines]
    # What an entry begins was fetched within `INTERVAL` after it.
    offsets = (int(entry[1]) for entry in entries if _is_entry(entry) and int(entry[0]) + INTERVAL > at)
    return next(offsets, files.length(log)) if lines else 0


def _is_entry(words: list[str]) -> bool:
    return [word.isdecimal() for word in words] == [True, True]


def start_of(path: Path, lines: int | None, after: float | None) -> int:
    """Return the offset from which on a log is printed: its last `lines` lines, of what was written after a time."""
    offset = 0 if lines is None else start_of_last(path, lines)
    return offset if after is None else max(offset, offset_since(path, after))


def start_of_last(path: Path, lines: int) -> int:
    """Return the offset at which the last `lines` lines of a file begin; 0 if it has fewer, or does not exist."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return 0
    with file:
        offset = end = file.seek(0, os.SEEK_END)
        newlines = 0
        while offset:
            size = min(_BLOCK, offset)
            offset -= size
            file.seek(offset)
            block = file.read(size)
            if offset + size == end and block.endswith(b"\n"):
                newlines -= 1  # that of the last line
            at = len(block)
            while (at := block.rfind(b"\n", 0, at)) >= 0:
                newlines += 1
                if newlines == lines:
                    return offset + at + 1
    return 0 if lines else end
