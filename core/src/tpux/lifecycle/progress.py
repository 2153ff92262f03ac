"""Read from the output how far the program has come: while it runs, for `progress.json`, and at the attempt's end."""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from tpux.errors import TpuxError
from tpux.lifecycle.turn import Turn
from tpux.model.program_output import tail
from tpux.model.progress import PATTERNS, Progress, Quantity, find_url, first_step, read_progress
from tpux.store import progress as stored

_log = logging.getLogger(__name__)
WRITE_EVERY = 5.0
"""Seconds between two times that the output is searched, and `progress.json` is written."""
TAIL = 8 * 1024
"""Bytes at the end of a worker's output that are searched."""
HEAD = 256 * 1024
"""Bytes at its beginning that are searched for the attempt's first step, and on the first worker for a run's URL."""
LINE = 1024
"""Bytes of a line whose rest may come later."""
RATE_OVER = 60.0
"""Seconds over which the rate is measured."""


class ProgressReader:
    """Reads the progress of the running attempt, at most every `WRITE_EVERY` seconds, and only if there is output.

    Attributes:
        progress: how far the program has come.
        next_at: when `update` has something to do if there is no more output, by the monotonic clock.
    """

    def __init__(self) -> None:
        self.progress = Progress()
        self.next_at = 0.0
        self._next = 0.0
        self._began = False
        self._steps: deque[tuple[float, int]] = deque()
        self._searched = 0

    def update(self, turn: Turn, *, news: bool) -> None:
        """Read the output if it is time, and write `progress.json`.

        Args:
            turn: the step.
            news: there may be new output since the last call.
        """
        now = turn.clock.monotonic()
        self.next_at = self._next if news else self.next_at
        if now < self.next_at:
            return
        self.next_at, self._next = math.inf, now + WRITE_EVERY
        if (found := _last_progress(turn)) is None:
            return
        earlier = self.progress or stored.load(turn.record.directory, turn.state)[0]  # of a former supervisor
        merged = _merge(earlier, found)
        url = merged.url or self.read_url(turn)
        self.progress = replace(merged, rate=self._rate(now, found.step), url=url)
        if not self.progress:
            return
        try:
            stored.save(turn.record.directory, turn.state.attempt, turn.clock.now(), self.progress)
        except OSError as error:  # what matters is written by others, and they report it
            _log.debug("job %s: %s cannot be written: %s", turn.state.id, stored.FILE, error)

    def read_url(self, turn: Turn) -> str:
        """Return the URL of a run in the output that was not searched yet, up to HEAD; "" if it has none."""
        if self._searched >= HEAD:
            return ""
        data = _head(next(_logs(turn)), self._searched)
        end = self._searched + len(data)
        self._searched = end if end >= HEAD else max(self._searched, end - LINE)
        return find_url(_text(data), _patterns(turn).get("url"))

    def _rate(self, now: float, step: int | None) -> float | None:
        """Return the steps per second of the last minute; None if no two steps are known.

        The first read does not count: it comes as soon as there is output, perhaps in the middle of several steps that
        are printed at once.
        """
        if step is None or not self._began:
            self._began = step is not None
            return None
        if self._steps and step < self._steps[-1][1]:  # such as a step of an evaluation
            self._steps.clear()
        self._steps.append((now, step))
        while len(self._steps) > 2 and now - self._steps[1][0] >= RATE_OVER:
            self._steps.popleft()
        (began, first), (ended, last) = self._steps[0], self._steps[-1]
        return (last - first) / (ended - began) if last > first and ended > began else None


def final_progress(turn: Turn) -> tuple[Progress | None, int]:
    """Return how far the attempt that ends now has come, and how many steps of the one that failed before it repeated.

    Numbers that the end of the output lacks, such as a step before a long traceback, are those that were read last.

    Returns:
        None, and 0, if its output names no step.
    """
    state = turn.state
    saved, _ = stored.load(turn.record.directory, state)
    found = _merge(saved, _last_progress(turn) or Progress())
    if not found.url:
        found = replace(found, url=ProgressReader().read_url(turn))
    if found.step is None:
        return found or None, 0
    pattern = _patterns(turn).get("step")
    heads = (first_step(_text(_head(log)), pattern) for log in _logs(turn))
    first = next((step for step in heads if step is not None), None)
    repeated = max(0, state.reached - first + 1) if state.reached is not None and first is not None else 0
    return replace(found, rate=saved.rate, first_step=first), repeated


def _last_progress(turn: Turn) -> Progress | None:
    """Return the progress of the first worker whose output names a step; else of the first that says anything.

    Returns:
        None if no worker has written anything, or only a line that is longer than what is searched.
    """
    patterns, other = _patterns(turn), None
    for log in _logs(turn):
        if not (text := tail(log, TAIL)):
            continue
        found = read_progress(text, patterns)
        if found.step is not None:
            return found
        other = other or found
    return other


def _merge(earlier: Progress, found: Progress) -> Progress:
    """Return what later output says, with the earlier numbers that it does not repeat."""
    step = earlier.step if found.step is None else found.step
    epoch = earlier.epoch if found.epoch is None else found.epoch
    return replace(found, step=step, epoch=epoch, loss=found.loss or earlier.loss, url=found.url or earlier.url)


def _logs(turn: Turn) -> Iterator[Path]:
    state = turn.state
    return (turn.record.output_log(state.attempt, worker) for worker in state.run.workers)


def _head(log: Path, start: int = 0) -> bytes:
    """Return the first HEAD bytes of an output, from `start` on."""
    try:
        with log.open("rb") as file:
            file.seek(start)
            return file.read(HEAD - start)
    except FileNotFoundError:
        return b""


def _text(data: bytes) -> str:
    return data.decode(errors="replace").replace("\r", "\n")


def _patterns(turn: Turn) -> Mapping[Quantity, str | None]:
    try:
        return {**PATTERNS, **turn.job.watch.progress}
    except TpuxError:  # the attempt of a job that cannot be opened any more ends too
        return PATTERNS
