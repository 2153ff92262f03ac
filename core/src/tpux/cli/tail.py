"""Read the output of a job's workers as it grows, and decide what a terminal shows of it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

from tpux.console import worker_prefix
from tpux.store.output import start_of

FLUSH_AFTER = 10.0
"""Seconds after which an incomplete line is printed without waiting for its newline, where it is not redrawn."""
READ_SIZE = 1 << 20
"""Bytes read from one log at a time."""


class Tail:
    """Reads one worker's output as it grows, line by line, each with the worker's number.

    Args:
        path: the log of the worker.
        worker: the worker's number.
        redraws: the caller shows an incomplete line on a terminal and redraws it: it is returned only with its end, in
            its last state.
        lines: how many of the lines that are there already are read; None for all.
        after: only those that were written after this time; None for all.
        module: whose log it is; "" for the output of the program.

    Attributes:
        changed_at: when output was read last (monotonic).
    """

    def __init__(
        self,
        path: Path,
        worker: int,
        redraws: bool = False,
        lines: int | None = None,
        after: float | None = None,
        module: str = "",
    ) -> None:
        self.path = path
        self.changed_at = 0.0
        self._prefix = worker_prefix(worker) + (f"{module}: ".encode() if module else b"")
        self._redraws = redraws
        self._offset = start_of(path, lines, after)
        self._at_end = True
        self._rest = b""
        self._since = 0.0

    @property
    def incomplete(self) -> str:
        """The last line, whose newline has not come yet; "" if there is none."""
        return _last_state(self._prefix + self._rest).decode(errors="replace") if self._rest else ""

    def read(self, *, flush: bool = False) -> list[bytes]:
        """Return the lines that were completed since the last call.

        Args:
            flush: return an incomplete last line too.
        """
        new = self._read()
        while new and b"\n" not in new and (more := self._read()):
            new += more
        lines: list[bytes] = []
        if new:
            self.changed_at = time.monotonic()
            if not self._rest or b"\n" in new:
                self._since = self.changed_at  # since when the incomplete line has been waiting for its newline
            *lines, self._rest = (self._rest + new).split(b"\n")
            if self._redraws:  # a progress bar of days
                self._rest = self._rest[_start_of_last_state(self._rest) :]
        waited = not self._redraws and time.monotonic() - self._since > FLUSH_AFTER
        if self._rest and ((flush and self._at_end) or waited):
            lines.append(self._rest)
            self._rest = b""
        return [self._prefix + line for line in lines]

    def _read(self) -> bytes:
        try:
            with self.path.open("rb") as file:
                file.seek(self._offset)
                new = file.read(READ_SIZE)
        except FileNotFoundError:
            return b""
        self._offset += len(new)
        self._at_end = len(new) < READ_SIZE
        return new


def as_shown() -> Callable[[bytes], bytes]:
    """Return what prefixed lines of output pass through: a terminal shows only a progress bar's last state."""
    return _last_state if sys.stdout.isatty() else bytes


def _last_state(line: bytes) -> bytes:
    """Return a line without what a carriage return has overwritten (the prefix among it, if it were printed)."""
    prefix, _, text = line.partition(b" ")
    return prefix + b" " + text[_start_of_last_state(text) :].rstrip(b"\r")


def _start_of_last_state(text: bytes) -> int:
    """Return where the text begins that the last carriage return has left, which may still be followed by one."""
    return text.rstrip(b"\r").rfind(b"\r") + 1
