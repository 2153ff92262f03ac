"""Detector and solver `nan-loss`: stops a job whose loss is no number, and sets its last checkpoints aside."""

from __future__ import annotations

import re
from collections.abc import Generator
from pathlib import Path

from pydantic import field_validator

from tpux import Attempt, Failure, Job, Result, Section, Sh, Step, Steps, Worker, api, hookimpl, sh
from tpux.fields import Pattern

TAIL = 64 * 1024
"""Bytes at the end of a running program's output that are searched."""
_SET_ASIDE = """
for path in {directory}/step-*; do
  number=${path##*/step-}
  case $number in *[!0-9]*) continue ;; esac
  [ "$number" -lt {step} ] || ACTION "$path" "${path%/*}/nan-${path##*/}"
done
"""
HINT = "tpux solve JOB sets the checkpoints from this step on aside; then tpux resume JOB with another learning rate"


class NanLossSection(Section):
    """How a loss that is no number is found."""

    pattern: Pattern = r"(?i)step\D{0,3}(\d+).*loss\W{0,3}(nan|inf)\b"
    """A line of the output; its first group is the step."""
    checkpoints: str = ""
    """The directory on the workers with the checkpoints, step-1000 for that of step 1000; empty: none is moved."""

    @field_validator("pattern")
    @classmethod
    def _has_step(cls, pattern: str) -> str:
        if not re.compile(pattern).groups:
            raise ValueError(r"it needs a group for the step, such as step (\d+) loss=nan")
        return pattern


@hookimpl
def config_section() -> type[Section]:
    """Return the model of the plugin's section."""
    return NanLossSection


@hookimpl
def monitor(
    job: Job, config: NanLossSection | None, attempt: Attempt, worker: Worker
) -> Generator[Step, Result, Failure | None]:
    """Return a failure, which ends the attempt, once the output of a running program shows such a loss."""
    yield from ()  # the output is on this machine already
    output = api.outputs(job.id, attempt=attempt.number).get(worker.index)
    return None if output is None else find(_tail(output), worker.index, config)


@hookimpl
def classify_failure(attempt: Attempt, config: NanLossSection | None) -> list[Failure]:
    """Return the failure of a program that noticed it by itself."""
    failed = [ending for ending in attempt.endings if ending.failed]
    return [found for ending in failed if (found := find(ending.tail(), ending.worker, config))]


@hookimpl
def solve(failure: Failure, config: NanLossSection | None) -> Steps:
    """Yield the step that renames the checkpoints from the failure's step on, so that a resume begins before it."""
    step = re.search((config or NanLossSection()).pattern, failure.evidence)
    if config and config.checkpoints and step and (step[1] or "").isdecimal():
        yield _set_aside(config.checkpoints, int(step[1]), "mv").with_preview(
            _set_aside(config.checkpoints, int(step[1]), "echo would rename")
        )


def find(text: str, worker: int, config: NanLossSection | None) -> Failure | None:
    """Return the failure that the first such line shows, None if there is none."""
    pattern = re.compile((config or NanLossSection()).pattern)
    line = next((line.strip() for line in text.splitlines() if pattern.search(line)), "")
    return Failure("program", worker, evidence=line, hint=HINT) if line else None


def _tail(path: Path) -> str:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - TAIL))
        return file.read().decode(errors="replace")


def _set_aside(directory: str, step: int, action: str) -> Sh:
    return sh(_SET_ASIDE.replace("ACTION", action), directory=directory.removeprefix("~/"), step=str(step))
