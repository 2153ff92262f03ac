"""When the last pieces of a program's output were fetched: each poll of them, where `.times` has one every 10 s.

The order of a line and of another worker's end may matter, and both are often a second apart. It is known only once
that end is observed, so the polls until then are kept in memory. A supervisor that starts anew has lost them.
"""

from __future__ import annotations

from collections import deque
from pathlib import Path

from tpux.plugin.program_output import newest_times
from tpux.store import files

KEPT = 64


class RecentFetches:
    """The last fetches of one log: when each began, and the length that the log had then."""

    def __init__(self) -> None:
        self._fetches: deque[tuple[float, int]] = deque(maxlen=KEPT)

    def add(self, log: Path, at: float) -> None:
        """Keep that output is about to be appended to the log."""
        self._fetches.append((at, files.length(log)))

    def record(self, log: Path) -> None:
        """Write those that are newer than the last entry of `.times` to it.

        Raises:
            OSError: they could not be written.
        """
        try:
            recorded = next((length for _, length in newest_times(log)), -1)
        except FileNotFoundError:
            recorded = -1
        lines = [f"{at:.2f} {length}\n" for at, length in self._fetches if length > recorded]
        self._fetches.clear()
        if lines:
            files.append_output(log.with_suffix(".times"), "".join(lines).encode())
