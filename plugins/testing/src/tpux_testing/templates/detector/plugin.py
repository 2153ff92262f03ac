"""Detector `sample`: finds a full disk in the output of a program that has failed."""

from __future__ import annotations

from tpux import Attempt, Failure, Section, WorkerExit, hookimpl

LINE = "No space left on device"


class SampleSection(Section):
    """What a user is told when a disk is full."""

    hint: str = "write checkpoints to a bucket, and remove old ones"
    """What to do about it."""


@hookimpl
def config_section() -> type[Section]:
    """Return the model of the plugin's section."""
    return SampleSection


@hookimpl
def classify_failure(attempt: Attempt, config: SampleSection | None) -> list[Failure]:
    """Return what the exit codes and logs mean. Called for every job, also without the plugin's section."""
    hint = (config or SampleSection()).hint
    return [failure for ending in attempt.endings if (failure := _find(ending, hint))]


def _find(ending: WorkerExit, hint: str) -> Failure | None:
    for line in ending.tail().splitlines():
        if ending.failed and LINE in line:
            return Failure("config", ending.worker, evidence=line.strip(), hint=hint)
    return None
