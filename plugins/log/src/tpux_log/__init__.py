"""Detector `log`: patterns of the program's own output, given in the config."""

from __future__ import annotations

from pydantic import Field

from tpux import Attempt, Failure, Finished, Job, Section, hookimpl
from tpux.fields import OutputFailureKind, Pattern, find_line

Patterns = Pattern | list[Pattern]


class LogSection(Section):
    """What lines near the end of the program's output mean."""

    finished: Patterns = Field(default_factory=list)
    """A line that shows that the program completed its work; it counts with command.finished_by: [log]."""
    failed: dict[OutputFailureKind, Patterns] = Field(default_factory=dict)
    """By kind of failure, the lines that show it on a worker that failed; the first match in this order counts."""

    def needs_finished_by(self) -> list[str]:
        """Return the key `finished` if it is set."""
        return ["finished"] if self.finished else []

    def never_finished(self) -> str:
        """Return that there is no pattern to look for."""
        return "" if self.finished else "log.finished is not set"


@hookimpl
def config_section() -> type[Section]:
    """Return the model of the section `log`."""
    return LogSection


@hookimpl
def classify_failure(job: Job, config: Section | None, attempt: Attempt) -> list[Failure | Finished]:
    """Return on which workers a pattern of the config matches."""
    if not isinstance(config, LogSection):
        return []
    return [*_finished(config, attempt), *_failures(config, attempt, f"tpux logs {int(job.id or 0)}")]


def _finished(config: LogSection, attempt: Attempt) -> list[Finished]:
    found = [(ending, _find(config.finished, ending.tail())) for ending in attempt.endings] if config.finished else []
    return [Finished(line, ending.worker, ending.time_of(line)) for ending, line in found if line]


def _failures(config: LogSection, attempt: Attempt, command: str) -> list[Failure]:
    failures = []
    for ending in attempt.endings:
        text = ending.tail() if ending.failed and config.failed else ""
        found = ((kind, _find(patterns, text)) for kind, patterns in config.failed.items())
        if match := next((one for one in found if one[1]), None):
            failures.append(Failure(match[0], ending.worker, match[1], f"{command} --worker {ending.worker}"))
    return failures


def _find(patterns: Patterns, text: str) -> str:
    """Return the first line that one of the patterns matches, "" if none does."""
    every = [patterns] if isinstance(patterns, str) else patterns
    return next(filter(None, (find_line(text, pattern) for pattern in every)), "")
