"""Where to begin to print the output of a program: its last lines, or what was fetched since a time.

`command_worker_N.times` beside a log has lines with a time, in seconds since the epoch, and the length that the log had
then. It may be lost or torn: then more of the output is printed. `WorkerExit.time_of` reads it, too.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from tpux.plugin.program_output import read_times
from tpux.store import files

INTERVAL = 10.0
"""Seconds between two entries at least, so that a day of output has at most 250 kB of them."""
KEPT = 64
"""How many of the last fetches of a log are kept."""
_END = 4096
"""Bytes of `.times` that have more entries than are kept here."""
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


class RecentFetches:
    """The last fetches of one log: when each began, and the length that the log had then."""

    def __init__(self) -> None:
        self._fetches: deque[tuple[float, int]] = deque(maxlen=KEPT)

    def add(self, log: Path, at: float) -> None:
        """Keep that output is about to be appended to the log."""
        self._fetches.append((at, files.length(log)))

    def record(self, log: Path) -> None:
        """Write them to `.times`, in place of the fewer entries that it has since the first of them.

        Raises:
            OSError: they could not be written.
        """
        if not self._fetches:
            return
        times, fetches = log.with_suffix(".times"), [*self._fetches]
        try:
            with times.open("r+b") as file:
                end, length = _end_of_older(file, fetches[0][1])
                file.seek(end)
                file.write(_lines(fetches, after=length))
                file.truncate()
        except FileNotFoundError:
            files.append_output(times, _lines(fetches, after=-1))
        self._fetches.clear()  # now that they are written: after a disk that fails once the next poll writes them


def _lines(fetches: Sequence[tuple[float, int]], after: int) -> bytes:
    return "".join(f"{at:.2f} {length}\n" for at, length in fetches if length > after).encode()


def _end_of_older(file: BinaryIO, limit: int) -> tuple[int, int]:
    """Return where the entries of a file of times end that are for a log of at most `limit` bytes, and the last length.

    A torn entry is none of them. The length is -1 if there is no such entry near the end.
    """
    position, last = max(0, file.seek(0, os.SEEK_END) - _END), -1
    file.seek(position)
    for line in file.read().splitlines(keepends=True):
        text = line.partition(b" ")[2].strip()
        length = int(text) if text.isdigit() else -1
        if not line.endswith(b"\n") or length > limit:
            break
        position, last = position + len(line), max(last, length)
    return position, last
