"""The phases of a job on stderr: one line each, with how long the last one took; a live line on a terminal."""

from __future__ import annotations

import sys
import time
from typing import cast

from tpux.cli.common import say
from tpux.cli.telling import told
from tpux.store.events import Event
from tpux.store.jobs import Record

REMIND_EVERY = 60.0
"""Seconds after which a phase that goes on is named again where there is no live line."""


class Phases:
    """What the job is doing, as it happens.

    Args:
        record: the job.
        since: the length of its events from which on they are news.
    """

    def __init__(self, record: Record, since: int = 0) -> None:
        self._record = record
        self._offset = since
        self._line = ""
        self._phase = ""
        self._since = 0.0
        self._reminded = time.monotonic()
        self._live = sys.stderr.isatty()
        self._shown = False

    def show(self) -> None:
        """Show what has happened since the last time, as far as the record was looked at: the output came first."""
        for event, offset in self._record.events(self._offset):
            if offset > self._record.offset:
                break
            self._offset = offset
            self._hear(event)
        if not self._line:
            return
        if self._live:
            self._write_live()
        elif time.monotonic() - self._reminded > REMIND_EVERY:
            self._reminded = time.monotonic()
            say(f"{self._line} (for {spell(time.time() - self._since)})")

    def clear(self) -> None:
        """Take the live line away, for something else is written."""
        if self._shown:
            sys.stderr.write("\r\x1b[K")
            self._shown = False

    def _hear(self, event: Event) -> None:
        at, kind = cast("float", event["at"]), event["type"]
        if kind == "moved":
            took = f" ({self._phase} took {spell(at - self._since)})" if self._phase else ""
            self._phase, self._since = cast("str", event["to"]), at
            self._say(told(event), took)
        elif kind == "waiting":
            self._say(f"{self._phase}: {told(event)}")
        elif kind in {"allocated", "failure"} or (kind == "attempt-ended" and event["failure"]):
            self._say(told(event))

    def _say(self, line: str, more: str = "") -> None:
        self.clear()
        say(line + more)
        self._line = line
        self._reminded = time.monotonic()

    def _write_live(self) -> None:
        sys.stderr.write(f"\r\x1b[K  {self._line.splitlines()[0][:60]} … {spell(time.time() - self._since)}")
        sys.stderr.flush()
        self._shown = True


def spell(seconds: float) -> str:
    """A duration for people: 0.4 s, 12 s, 3 min 5 s, 2 h 10 min."""
    if seconds < 10:
        return f"{max(seconds, 0):.1f} s"
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
