"""The log of what was done on a worker, written once however often it is done again from the start."""

from __future__ import annotations

import mmap
import os
from pathlib import Path


class ReplayLog:
    """Appends to one log; what an interrupted writer with the same header has written is not written again.

    A walk that is taken again after the supervisor's death brings forth the same bytes from the start:
    as many as are there after the header are passed over.

    Args:
        path: the log; made with mode 0600, in a directory that is there.
        header: the line that each walk begins with, another one for each that is a walk of its own:
            `== attempt 2, try 1: setup venv ==`.
    """

    def __init__(self, path: Path, header: str) -> None:
        self._path = path
        line = header.encode() + b"\n"
        self._known = _after(path, line)
        self._at_line_start = True
        if self._known is None:
            self._known = 0
            self.write(line)

    def write(self, data: bytes) -> None:
        """Append what is new of `data`."""
        if not data:
            return
        self._at_line_start = data.endswith(b"\n")
        known = min(self._known or 0, len(data))
        self._known = (self._known or 0) - known
        if known < len(data):
            file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            with os.fdopen(file, "wb", buffering=0) as log:
                rest = memoryview(data)[known:]
                while rest:
                    rest = rest[log.write(rest) or 0 :]

    def line(self, text: str) -> None:
        """Append a line of tpux' own, at the beginning of a line."""
        self.write(b"" if self._at_line_start else b"\n")
        self.write(text.encode(errors="replace") + b"\n")


def _after(path: Path, line: bytes) -> int | None:
    """How many bytes come after the last such line of a file; None where there is none."""
    if not path.exists() or not path.stat().st_size:
        return None
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        found = content.rfind(b"\n" + line)
        if found >= 0:
            return len(content) - found - 1 - len(line)
        return len(content) - len(line) if content[: len(line)] == line else None
