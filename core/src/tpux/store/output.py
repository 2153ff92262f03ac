"""Where to begin to print the output of a program: its last lines, or what was fetched since a time.

`command_worker_N.times` beside a log has lines with a time, in seconds since the epoch, and the length that the log had
then. It may be lost or torn: then more of the output is printed. `WorkerExit.time_of` reads it, too.
"""

from __future__ import annotations

import os
from pathlib import Path

from tpux.model.program_output import read_times
from tpux.store import files

INTERVAL = 10.0
"""Seconds between two entries at least, so that a day of output has at most 250 kB of them."""


_BLOCK = 1 << 20
_OVERWRITTEN = "overwritten"
"""Follows the origin in its file."""


def record_time(log: Path, at: float, after: float = 0.0) -> None:
    """Record that output is about to be appended to a log, unless the last entry is recent.

    Args:
        log: the log.
        at: the current time.
        after: when something happened whose order with the output matters: an entry from before is not recent.

    Raises:
        OSError: it could not be written.
    """
    times = log.with_suffix(".times")
    try:
        written = times.stat().st_mtime
        recent = 0 <= at - written < INTERVAL and written >= after
    except FileNotFoundError:
        recent = False
    if not recent:
        files.append_output(times, f"{at:.2f} {files.length(log)}\n".encode())


def next_offset(log: Path) -> int:
    """Return the offset in a program's output on the worker of what its log does not have yet.

    It is the log's length, unless the program has truncated its output: then it counts from where the log was then.

    Raises:
        OSError: the log has lost its end, and where the output now begins in it could not be written.
    """
    length, origin = files.length(log), _origin(log)
    if length < origin:  # a crash of this machine has lost the log's end
        begin_anew(log)
    return max(0, length - origin)


def was_truncated(log: Path) -> bool:
    """Return whether the program has truncated its output, so that the log has more than there is on the worker."""
    return _origin(log) > 0


def begin_anew(log: Path) -> None:
    """Record that the output on the worker was truncated, and that nothing was fetched of it since.

    Raises:
        OSError: it could not be written.
    """
    files.write_atomic(log.with_suffix(".origin"), str(files.length(log)).encode())


def mark_overwritten(log: Path) -> None:
    """Record that what was fetched is overwritten on the worker, as by two processes that opened the file apart.

    It is not compared any more, until the program truncates its output.

    Raises:
        OSError: it could not be written.
    """
    files.write_atomic(log.with_suffix(".origin"), f"{_origin(log)} {_OVERWRITTEN}".encode())


def is_overwritten(log: Path) -> bool:
    """Return whether what was fetched since the last truncation is overwritten on the worker."""
    return _read_origin(log).endswith(_OVERWRITTEN)


def has(log: Path, content: bytes) -> bool:
    """Return whether a log has this content where the worker's present output begins."""
    with log.open("rb") as file:
        file.seek(_origin(log))
        return file.read(len(content)) == content


def ends_with(log: Path, content: bytes) -> bool:
    """Return whether this content is the end of a log that is at least as long."""
    with log.open("rb") as file:
        file.seek(-len(content), os.SEEK_END)
        return file.read() == content


def _origin(log: Path) -> int:
    """Return the offset in a log at which the output that is now on the worker begins."""
    text = _read_origin(log).partition(" ")[0]
    return int(text) if text.isdecimal() else 0


def _read_origin(log: Path) -> str:
    try:
        return log.with_suffix(".origin").read_text(encoding="ascii", errors="replace")
    except FileNotFoundError:
        return ""


def offset_since(log: Path, at: float) -> int:
    """Return the offset in a log from which on it was fetched at this time or later, at most `INTERVAL` too early."""
    try:
        if log.stat().st_mtime < at:
            return files.length(log)
        entries = read_times(log)
    except FileNotFoundError:
        return 0
    # What an entry begins was fetched within `INTERVAL` after it.
    offsets = (length for begun, length in entries if begun + INTERVAL > at)
    return next(offsets, files.length(log)) if entries else 0


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
