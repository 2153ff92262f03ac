"""Ask the plugins how far the program has come: while it runs, for `progress.json`, and at the attempt's end."""

from __future__ import annotations

import logging
import math
from collections import deque
from dataclasses import replace
from pathlib import Path

from tpux.errors import TpuxError
from tpux.lifecycle.turn import Turn
from tpux.model.progress import Progress
from tpux.plugin import spec
from tpux.store import progress as stored

_log = logging.getLogger(__name__)
WRITE_EVERY = 5.0
"""Seconds between two times that new output is read, and `progress.json` is written."""
BATCH = 256 * 1024
"""Bytes of output that are read at once; of more, the last ones count, and at the attempt's end the first ones too."""
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
        self._offset = 0
        self._began = False
        self._steps: deque[tuple[float, int]] = deque()
        self._reported: set[str] = set()

    def update(self, turn: Turn, *, news: bool) -> None:
        """Read new output if it is time, and write `progress.json`.

        Args:
            turn: the step.
            news: there may be new output since the last call.
        """
        now = turn.clock.monotonic()
        self.next_at = self._next if news else self.next_at
        if now < self.next_at:
            return
        self.next_at, self._next = math.inf, now + WRITE_EVERY
        lines, self._offset = _read_lines(_log_of(turn), self._offset)
        if not lines or (found := _ask(turn, lines, self._reported)) is None:
            return
        earlier = self.progress or stored.load(turn.record.directory, turn.state)[0]  # of a former supervisor
        merged = earlier.followed_by(found)
        self.progress = replace(merged, rate=self._rate(now, found.step) if found.step is not None else merged.rate)
        if not self.progress:
            return
        try:
            stored.save(turn.record.directory, turn.state.attempt, turn.clock.now(), self.progress)
        except OSError as error:  # what matters is written by others, and they report it
            _log.debug("job %s: %s cannot be written: %s", turn.state.id, stored.FILE, error)

    def _rate(self, now: float, step: int) -> float | None:
        """Return the steps per second of the last minute; None if no two steps are known.

        The first read does not count: it comes as soon as there is output, perhaps in the middle of several steps that
        are printed at once.
        """
        if not self._began:
            self._began = True
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
    state, log = turn.state, _log_of(turn)
    came, reported = Progress(), set[str]()
    saved, _ = stored.load(turn.record.directory, state)
    first, end = _read_lines(log, 0, whole=True)
    parts = [_ask(turn, first, reported)]
    if end < _length(log):
        last, _ = _read_lines(log, _length(log) - BATCH, whole=True)
        parts += [saved, _ask(turn, last, reported)]
    else:
        parts.insert(0, saved)
    for part in parts:
        came = came if part is None else came.followed_by(part)
    if came.step is None:
        return came or None, 0
    repeated = state.reached is not None and came.first_step is not None
    return came, max(0, (state.reached or 0) - (came.first_step or 0) + 1) if repeated else 0


def _ask(turn: Turn, lines: list[str], reported: set[str]) -> Progress | None:
    """Return what the plugins find in the lines; None if they find nothing. A plugin that fails is reported once."""
    found: Progress | None = None
    try:
        job = turn.job
    except TpuxError:  # the attempt of a job that cannot be opened any more ends too
        return None
    for name, answer in turn.plugins.call_each(job, spec.progress, job=job, config=None, lines=lines):
        if not isinstance(answer, TpuxError):
            found = answer if found is None else found.followed_by(answer)
        elif name not in reported:
            reported.add(name)
            turn.log(f"{answer.message}; continuing without it")
    return found


def _read_lines(log: Path, start: int, *, whole: bool = False) -> tuple[list[str], int]:
    """Return the lines of an output from an offset on, and the offset after them.

    Args:
        log: the output.
        start: the offset.
        whole: the first `BATCH` bytes from there, with a last line that has no end; otherwise the last `BATCH` bytes of
            all complete lines, and a line of a progress bar ends with a carriage return, too.
    """
    length = _length(log)
    start = max(0, start if whole else max(start if start <= length else 0, length - BATCH))
    if start >= length:
        return [], start
    with log.open("rb") as file:
        file.seek(start)
        data = file.read(BATCH)
    if not whole:
        data = data[: max(data.rfind(b"\n"), data.rfind(b"\r")) + 1]
    text = data.decode(errors="replace").replace("\r", "\n")
    return text.removesuffix("\n").split("\n") if text else [], start + len(data)


def _log_of(turn: Turn) -> Path:
    """Return the output of the first worker that runs the command."""
    return turn.record.output_log(turn.state.attempt, turn.state.run.workers[0])


def _length(log: Path) -> int:
    return log.stat().st_size if log.exists() else 0
