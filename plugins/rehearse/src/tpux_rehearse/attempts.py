"""What happened to a rehearsed job, attempt by attempt, from its events and its output."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from tpux import Failure, Progress, events
from tpux.api.text import printable

SHOWN_LINES = 3
LONGEST_LINE = 160
_OF_A_RESUME = re.compile(
    r"(?i)\b(?:resum|restor|checkpoint|ckpt|from scratch|start(?:ing|ed)? (?:at|from|over)|load(?:ed|ing)\b)"
)


@dataclass
class RehearsedAttempt:
    """One attempt of a rehearsed job.

    Attributes:
        number: from 1.
        resumes: whether the program was told to resume (`TPUX_RESUME=1`).
        output_dir: its output directory.
        previous_output_dir: the output directory that it resumes from; "" if it starts from scratch.
        running_at: when it was confirmed to run, in seconds since the epoch; None if it never was.
        ended_at: when it was over; None if it is not.
        failure: what ended it; None if it succeeded or was stopped.
        stopped: the rehearsal stopped it.
        progress: how far it came, as its output says.
        repeated_steps: how many steps of an earlier attempt it did again.
        printed: what it printed about a resume, or its first lines.
        last_lines: the end of what it printed.
        files: the files in its output directory that it wrote.
        elsewhere: files that it wrote in the home directory of its worker, as far as they were seen.
    """

    number: int
    resumes: bool
    output_dir: str
    previous_output_dir: str
    running_at: float | None = None
    ended_at: float | None = None
    failure: Failure | None = None
    stopped: bool = False
    progress: Progress = field(default_factory=Progress)
    repeated_steps: int = 0
    printed: list[str] = field(default_factory=list)
    last_lines: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    elsewhere: list[str] = field(default_factory=list)

    @property
    def lost_machines(self) -> bool:
        """Whether a preemption ended it."""
        return self.failure is not None and self.failure.kind == "preempted"

    @property
    def rate(self) -> float | None:
        """Steps per second, as far as the output and the times of the attempt say; None if that is unknown."""
        first, last, began, ended = self.progress.first_step, self.progress.step, self.running_at, self.ended_at
        if self.progress.rate:
            return self.progress.rate
        if first is None or last is None or began is None or ended is None or last <= first or ended <= began:
            return None
        return (last - first) / (ended - began)


def read_attempts(happened: Iterable[events.Event]) -> list[RehearsedAttempt]:
    """Return the attempts of a job, the first one first.

    Args:
        happened: all events of the job, oldest first.
    """
    found: list[RehearsedAttempt] = []
    for event in happened:
        match event:
            case events.AttemptStarted():
                previous = event.previous_output_dir
                found.append(RehearsedAttempt(event.attempt, event.resume, event.output_dir, previous))
            case events.AttemptRunning() if found:
                found[-1].running_at = event.at
            case events.AttemptEnded() if found:
                last = found[-1]
                last.ended_at, last.failure, last.stopped = event.at, event.failure, event.stopped
                last.progress, last.repeated_steps = event.progress or Progress(), event.repeated_steps
    return found


def read_output(attempt: RehearsedAttempt, outputs: dict[int, Path], directory: Path) -> None:
    """Fill in what the first worker of an attempt printed, and which files are in its output directory.

    Args:
        attempt: the attempt, which has ended.
        outputs: the files with the output, by worker.
        directory: its output directory, as this machine has it.
    """
    lines = read_lines(outputs)
    about = [line for line in lines if is_about_a_resume(line)]
    attempt.printed = [line[:LONGEST_LINE] for line in (about or lines)[:SHOWN_LINES]]
    attempt.last_lines = [line[:LONGEST_LINE] for line in lines[-SHOWN_LINES:]]
    attempt.files = sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file())


def is_about_a_resume(line: str) -> bool:
    """Return whether a line of a program's output speaks about a resume, or about a checkpoint."""
    return _OF_A_RESUME.search(line) is not None


def read_lines(outputs: dict[int, Path]) -> list[str]:
    """Return the lines that the first worker printed, whole, without what could control a terminal."""
    if not outputs:
        return []
    text = printable(outputs[min(outputs)].read_text(errors="replace"))
    return [line for line in text.splitlines() if line.strip()]
