"""Ranges of a program's output, read from its file by byte offset. Nothing is held in memory."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from tpux import JsonValue, TpuxError, api

TAIL = 64 * 1024
"""Bytes at the end of a file with which a page begins."""
CHUNK = 256 * 1024
"""Bytes that are read at once at most."""
BEHIND = 1024 * 1024
"""Bytes that a page may be behind the end of a file; those in front of the tail are then left out, and said so."""


def find(job: int, attempt: int, worker: int) -> Path | None:
    """Return the file with the output of a worker; None if there is none (yet)."""
    try:
        return api.outputs(job, attempt=attempt).get(worker)
    except (TpuxError, OSError):
        return None


def workers(job: int, attempts: int) -> dict[int, list[int]]:
    """Return the workers that have output, by attempt."""
    found = {}
    for attempt in range(1, attempts + 1):
        try:
            found[attempt] = list(api.outputs(job, attempt=attempt))
        except (TpuxError, OSError):
            break
    return found


def read_before(path: Path, end: int) -> dict[str, JsonValue]:
    """Return the lines in front of an offset, which is the start of a line."""
    with path.open("rb") as file:
        size = file.seek(0, 2)
        end = min(max(0, end), size)
        start = max(0, end - TAIL)
        file.seek(start)
        data = file.read(end - start)
    if start and (newline := data.find(b"\n")) >= 0:
        data = data[newline + 1 :]
    return {"start": end - len(data), "next": end, "text": data.decode(errors="replace")}


@dataclass
class Follower:
    """What a page has of a file, and what it gets next.

    Attributes:
        job: the job's id.
        attempt: the attempt.
        worker: the worker.
        offset: up to where the page has the file; -1 if it has nothing of it: then it gets the file's end.
    """

    job: int
    attempt: int
    worker: int
    offset: int
    path: Path | None = None

    def read(self) -> dict[str, JsonValue] | None:
        """Return what was written since, a piece of it at least; None if that is nothing."""
        self.path = self.path or find(self.job, self.attempt, self.worker)
        if self.path is None:
            return None
        try:
            size = self.path.stat().st_size
            if size == self.offset:
                return None
            with self.path.open("rb") as file:
                return self._read(file.fileno(), size)
        except OSError:
            self.path = None
            return None

    def _read(self, file: int, size: int) -> dict[str, JsonValue] | None:
        skipped, anew = 0, size < self.offset  # the file has lost its end in a crash of this machine
        start = max(0, self.offset)
        if self.offset < 0 or anew or size - start > BEHIND:
            start = max(0, size - TAIL)
            if start and (newline := os.pread(file, TAIL, start).find(b"\n")) >= 0:
                start += newline + 1
            skipped = start - self.offset if self.offset >= 0 and not anew else 0
        data = os.pread(file, min(CHUNK, size - start), start)
        data = data[: _complete(data)]
        if not data:
            return None
        self.offset = start + len(data)
        text = data.decode(errors="replace")
        return {"start": start, "next": self.offset, "text": text, "skipped": skipped, "anew": anew, "size": size}


def _complete(data: bytes) -> int:
    """Return the length of the bytes without a character at their end that is not complete."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte < 0x80:
            break
        if byte >= 0xC0:
            needed = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return len(data) - back if needed > back else len(data)
    return len(data)
