"""When the last pieces of a program's output were fetched: each poll of them, where `.times` has one every 10 s.

The order of a line and of another worker's end may matter, and both are often a second apart. It is known only once
that end is observed, so the polls until then are kept in memory. A supervisor that starts anew has lost them.
"""

from __future__ import annotations

import os
from collections import deque
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
        lines = "".join(f"{at:.2f} {length}\n" for at, length in self._fetches).encode()
        times, oldest = log.with_suffix(".times"), self._fetches[0][1]
        self._fetches.clear()
        try:
            with times.open("r+b") as file:
                file.seek(_beginning_of(file, oldest))
                file.truncate()
                file.write(lines)
        except FileNotFoundError:
            files.append_output(times, lines)


def _beginning_of(file: BinaryIO, length: int) -> int:
    """Return the offset in a file of times of the first entry for a log of at least that length, or of a torn one."""
    position = max(0, file.seek(0, os.SEEK_END) - _END)
    file.seek(position)
    for line in file.read().splitlines(keepends=True):
        text = line.partition(b" ")[2].strip()
        if not line.endswith(b"\n") or (text.isdigit() and int(text) >= length):
            break
        position += len(line)
    return position
