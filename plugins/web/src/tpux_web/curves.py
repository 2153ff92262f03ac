"""Loss and steps per second over the step, of samples of a program's output: a log of any size costs the same."""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tpux import JsonValue, Progress
from tpux_progress.patterns import PATTERNS, read_progress
from tpux_web import detail, logs

PIECE = 2048
"""Bytes of a sample."""
MARGIN = 512
"""Bytes behind them, for the end of the last line that begins in a sample."""
SAMPLES = 128
"""Samples of a log at most; where there are as many, every second one is forgotten, and the others are as far apart."""
POINTS = 256
"""Points of a small log at most, all of whose lines are read."""
KEPT = 16
"""Logs whose samples are kept."""
ATTEMPTS = 8
"""Attempts that are shown, the newest ones."""


@dataclass
class Samples:
    """What samples of a log say.

    Attributes:
        stride: bytes from the start of a sample to that of the next.
        points: by offset, the points in the sample there: step and loss.
        unfinished: the offset of the sample that the log did not have all of.
    """

    stride: int = PIECE
    points: dict[int, list[tuple[int, float | None]]] = field(default_factory=dict)
    unfinished: int = -1

    def read(self, path: Path, patterns: Mapping[str, str | None]) -> None:
        """Read the samples that the log has by now and that were not read."""
        with path.open("rb") as file:
            size = file.seek(0, 2)
            while size > self.stride * SAMPLES:
                self.stride *= 2
            self.points = {offset: points for offset, points in self.points.items() if offset % self.stride == 0}
            for offset in range(0, size, self.stride):
                if offset not in self.points or offset == self.unfinished:
                    file.seek(offset)
                    self.points[offset] = _points(file.read(PIECE + MARGIN), patterns, whole=offset == 0)
                    self.unfinished = offset if size < offset + PIECE + MARGIN else self.unfinished


class Curves:
    """The curves of the jobs that pages show."""

    def __init__(self) -> None:
        self._samples: OrderedDict[Path, Samples] = OrderedDict()

    def of(self, job: int, attempts: int) -> dict[str, JsonValue]:
        """Return the curve of each attempt of a job, as its first worker has printed it: step, loss, steps per second.

        Raises:
            TpuxError: there is no such job, or its files are corrupt.
        """
        section = detail.progress_section(job)
        patterns: dict[str, str | None] = {}
        for name in ("step", "loss"):
            given = section.get(name, PATTERNS[name])
            patterns[name] = given if isinstance(given, str) else None
        found: dict[str, JsonValue] = {}
        sampled = False
        for attempt in range(max(1, attempts - ATTEMPTS + 1), attempts + 1):
            path = logs.find(job, attempt, 0)
            if path is None:
                continue
            samples = self._samples.pop(path, None) or Samples()
            try:
                samples.read(path, patterns)
            except OSError:
                continue
            self._samples[path] = samples
            sampled = sampled or samples.stride > PIECE
            if points := _with_rates(samples, path):
                found[str(attempt)] = points
        while len(self._samples) > KEPT:
            self._samples.popitem(last=False)
        return {"attempts": found, "sampled": sampled}


def _points(data: bytes, patterns: Mapping[str, str | None], *, whole: bool) -> list[tuple[int, float | None]]:
    """Return the steps that the lines of a sample name, with the loss that stands beside or below."""
    end = data.find(b"\n", PIECE) if len(data) > PIECE else data.rfind(b"\n")
    begin = 0 if whole else data.find(b"\n") + 1
    lines = data[begin : max(end, 0)].decode(errors="replace").replace("\r", "\n").split("\n")
    found: list[tuple[int, float | None]] = []
    for line in lines:
        said: Progress = read_progress(line, {**patterns, "url": None, "compiling": None})
        if said.step is not None:
            found.append((said.step, _number(said.loss)))
        elif said.loss and found and found[-1][1] is None:
            found[-1] = (found[-1][0], _number(said.loss))
    return found


def _with_rates(samples: Samples, path: Path) -> list[JsonValue]:
    times = _times(path.with_suffix(".times"))
    limit = max(1, POINTS // max(1, len(samples.points)))
    shown: list[JsonValue] = []
    last: tuple[int, float] | None = None
    for offset, points in sorted(samples.points.items()):
        every = -(-len(points) // limit) if points else 1
        at = times[1][max(0, bisect_right(times[0], offset) - 1)] if times[0] else 0.0
        rate = None
        if points and last is not None and at > last[1] and points[0][0] > last[0]:
            rate = round((points[0][0] - last[0]) / (at - last[1]), 4)
        if points and (last is None or at > last[1]):
            last = points[0][0], at
        for number, (step, loss) in enumerate(points[::every]):
            shown.append([step, loss, rate if number == 0 else None])
    return shown


def _times(path: Path) -> tuple[Sequence[int], Sequence[float]]:
    """Return the lengths that a log had, and when: what is beside it says so every few seconds of output."""
    lengths, times = [], []
    try:
        text = path.read_text(errors="replace")
    except OSError:
        return (), ()
    for line in text.splitlines():
        at, _, length = line.partition(" ")
        if length.isdecimal() and at.replace(".", "", 1).isdecimal():
            lengths.append(int(length))
            times.append(float(at))
    return lengths, times


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if abs(value) < 1e300 else None  # neither inf nor nan is JSON
