"""The table of the jobs: read once for all pages, and of 10,000 jobs only those that have changed."""

from __future__ import annotations

import getpass
import os
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tpux import JsonValue, TpuxError, api
from tpux.api import JobInfo
from tpux.api.text import describe_failure, printable

EVERY = 2.0
"""Seconds between two looks at the jobs at least."""
PAGE = 50
"""Jobs on a page."""
ORDER = ("running", "setting-up", "provisioning", "pending", "recovering", "stopping", "failed", "stopped", "succeeded")
"""The states in the order of the counts."""
LAST = 4096
"""Bytes at the end of a running job's output in which its last line is looked for."""


@dataclass(frozen=True, slots=True)
class Row:
    """What the table shows of a job."""

    id: int
    name: str
    state: str
    ended: bool
    since: float
    tpu: str
    attempt: int
    progress: str
    note: str
    tags: tuple[str, ...]
    zone: str
    user: str

    def matches(self, words: str) -> bool:
        """Return whether it has all words of a filter, as of `tpux monitor`; `!` negates one."""
        return all(self._has(word.removeprefix("!")) is not word.startswith("!") for word in words.split())

    def _has(self, word: str) -> bool:
        key, colon, value = word.partition(":")
        fields = {"state": self.state, "user": self.user, "name": self.name, "tpu": self.tpu, "zone": self.zone}
        if colon and key == "tag":
            return value in self.tags
        if colon and key in fields:
            return value in fields[key]
        return word in self.name or word == str(self.id)

    def to_json(self) -> dict[str, JsonValue]:
        """Return what the page shows of it."""
        return {
            "id": self.id,
            "name": self.name,
            "state": self.state,
            "since": self.since,
            "tpu": self.tpu,
            "attempt": self.attempt,
            "progress": self.progress,
            "note": self.note,
        }


class Jobs:
    """The user's jobs as of the last look."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._at = float("-inf")
        self._rows: dict[str, Row] = {}
        self._seen: dict[str, tuple[int, int]] = {}
        self._active: dict[str, JobInfo] = {}
        self._outputs: dict[str, tuple[int, Path]] = {}
        self._directory = f"{api.home()}/jobs/{os.environ.get('TPUX_USER') or getpass.getuser()}"

    def active(self) -> Sequence[JobInfo]:
        """Return the jobs that are not done, or hold machines."""
        self.refresh()
        return [*self._active.values()]

    def page(self, words: str, page: int) -> dict[str, JsonValue]:
        """Return the jobs on a page of the table, those that have not ended first, and how many there are."""
        self.refresh()
        rows = [row for row in self._rows.values() if row.matches(words)]
        rows.sort(key=lambda row: (row.ended, -row.id))
        states = [row.state for row in rows]
        counts: dict[str, JsonValue] = {state: number for state in ORDER if (number := states.count(state))}
        pages = max(1, -(-len(rows) // PAGE))
        page = min(max(1, page), pages)
        shown: list[JsonValue] = [row.to_json() for row in rows[(page - 1) * PAGE : page * PAGE]]
        return {"rows": shown, "counts": counts, "total": len(rows), "page": page, "pages": pages}

    def refresh(self) -> None:
        """Look at the jobs, unless that was done a moment ago."""
        with self._lock:
            if time.monotonic() - self._at < EVERY:
                return
            try:
                names = [name for name in os.listdir(self._directory) if name.isdigit()]  # noqa: PTH208  (10,000)
            except OSError:
                names = []
            for name in self._rows.keys() - set(names):
                self._forget(name)
            for name in names:
                self._look(name)
            self._at = time.monotonic()

    def _look(self, name: str) -> None:
        try:
            status = os.stat(f"{self._directory}/{name}/events.jsonl")  # noqa: PTH116  (10,000 of them)
            seen = (status.st_mtime_ns, status.st_size)
            if self._seen.get(name) == seen and name not in self._active:
                return
            info = api.job(name)
            self._rows[name] = self._row(info)
        except (TpuxError, OSError):
            self._forget(name)  # it was deleted just now, or cannot be read: `tpux list` says so
            return
        self._seen[name] = seen
        if info.done and info.allocation is None:
            self._active.pop(name, None)
            self._outputs.pop(name, None)
        else:
            self._active[name] = info

    def _forget(self, name: str) -> None:
        for known in (self._rows, self._seen, self._active, self._outputs):
            known.pop(name, None)

    def _row(self, info: JobInfo) -> Row:
        if info.state == "running":
            note = self._last_line(info)
        elif info.state == "failed" and info.failure:
            note = describe_failure(info.failure)
        else:
            note = info.why
        return Row(
            int(info.id),
            info.name,
            info.state,
            info.ended,
            info.since,
            info.accelerator or "",
            info.attempt,
            str(info.progress or ""),
            next(iter(printable(note).splitlines()), "")[:300],
            info.tags,
            info.zone or "",
            info.user,
        )

    def _last_line(self, info: JobInfo) -> str:
        attempt, path = self._outputs.get(info.id, (0, Path()))
        if attempt != info.attempt:
            found: Mapping[int, Path] = api.outputs(info.id, attempt=info.attempt)
            if not found:
                return info.why
            path = next(iter(found.values()))
            self._outputs[info.id] = (info.attempt, path)
        try:
            with path.open("rb") as file:
                file.seek(max(0, file.seek(0, 2) - LAST))
                data = file.read(LAST)
        except OSError:
            return info.why
        lines = (line.rstrip(b"\r").rpartition(b"\r")[2].strip() for line in reversed(data.split(b"\n")))
        return next((line.decode(errors="replace") for line in lines if line), info.why)
