"""When the last pieces of a program's output were fetched: each poll of them, where `.times` has one every 10 s.

The order of a line and of another worker's end may matter, and both are often a second apart. It is known only once
that end is observed, so the polls until then are kept in memory. A supervisor that starts anew has lost them.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from tpux.store import files

KEPT = 64
_END = 4096
"""Bytes of `.times` that have more entries than are kept here."""


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
