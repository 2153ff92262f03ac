"""Read the output of a job's workers as it grows, and decide what a terminal shows of it."""

from __future__ import annotations

import re
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from pathlib import Path

from tpux.console import worker_prefix
from tpux.store.output import start_of

LOOK_AHEAD = 50
"""Lines of a worker in which the line of another one is looked for."""
FLUSH_AFTER = 10.0
"""Seconds after which an incomplete line is printed without waiting for its newline, where it is not redrawn."""
READ_SIZE = 1 << 20
"""Bytes read from one log at a time."""


class Tail:
    """Reads one worker's output as it grows, line by line.

    Args:
        path: the log of the worker.
        worker: the worker's number.
        redraws: the caller shows an incomplete line on a terminal and redraws it: it is returned only with its end, in
            its last state.
        lines: how many of the lines that are there already are read; None for all.
        after: only those that were written after this time; None for all.
        module: whose log it is; "" for the output of the program.

    Attributes:
        worker: the worker's number.
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
        self.worker = worker
        self._module = f"{module}: ".encode() if module else b""
        self._redraws = redraws
        self._offset = start_of(path, lines, after)
        self._at_end = True
        self._rest = b""
        self._since = 0.0

    @property
    def incomplete(self) -> str:
        """The last line, whose newline has not come yet; "" if there is none."""
        text = worker_prefix(self.worker) + self._module + _last_state(self._rest)
        return text.decode(errors="replace") if self._rest else ""

    def read(self, *, flush: bool = False) -> list[bytes]:
        """Return the lines that were completed since the last call, without the worker's number.

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
        return [self._module + line for line in lines]

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


@dataclass(frozen=True)
class Shown:
    """Which lines of output are shown, and how.

    Attributes:
        pattern: what a line must match; None for all lines.
        timestamps: each line begins with the time at which it was fetched.
    """

    pattern: re.Pattern[bytes] | None = None
    timestamps: bool = False

    def lines(self, streams: Mapping[int, Iterable[tuple[float, bytes]]]) -> Iterator[bytes]:
        """Yield the lines of workers as they are printed. On a terminal a line that several have is one line.

        Args:
            streams: the lines of each worker, and when they were fetched.
        """
        folds, shown = sys.stdout.isatty(), as_shown()
        chosen = {
            worker: ((at, shown(line)) for at, line in lines if self._matches(line))
            for worker, lines in streams.items()
        }
        ordered = _fold(chosen) if folds else (([w], *line) for w, lines in chosen.items() for line in lines)
        for workers, at, line in ordered:
            stamp = f"{datetime.fromtimestamp(at):%Y-%m-%d %H:%M:%S} ".encode() if self.timestamps else b""
            yield worker_prefix(*workers) + stamp + line

    def _matches(self, line: bytes) -> bool:
        return self.pattern is None or self.pattern.search(line) is not None


def _fold(streams: Mapping[int, Iterator[tuple[float, bytes]]]) -> Iterator[tuple[list[int], float, bytes]]:
    """Yield each line with the workers that have printed it, in an order that is that of each worker."""
    heads: dict[int, deque[tuple[float, bytes]]] = {}
    for worker, lines in streams.items():
        if ahead := deque(islice(lines, LOOK_AHEAD)):
            heads[worker] = ahead

    def take(worker: int) -> tuple[float, bytes]:
        ahead = heads[worker]
        first = ahead.popleft()
        ahead.extend(islice(streams[worker], 1))
        if not ahead:
            del heads[worker]
        return first

    while heads:
        counts = Counter(ahead[0][1] for ahead in heads.values())
        text, members, at = max(counts, key=counts.__getitem__), [], 0.0
        for worker, ahead in [*heads.items()]:
            if not any(line == text for _, line in ahead):
                continue
            while ahead[0][1] != text:
                yield [worker], *take(worker)
            at, _ = take(worker)
            members.append(worker)
        yield members, at, text


def as_shown() -> Callable[[bytes], bytes]:
    """Return what lines of output pass through: a terminal shows only a progress bar's last state."""
    return _last_state if sys.stdout.isatty() else bytes


def _last_state(line: bytes) -> bytes:
    """Return a line without what a carriage return has overwritten (the prefix among it, if it were printed)."""
    return line[_start_of_last_state(line) :].rstrip(b"\r")


def _start_of_last_state(text: bytes) -> int:
    """Return where the text begins that the last carriage return has left, which may still be followed by one."""
    return text.rstrip(b"\r").rfind(b"\r") + 1
