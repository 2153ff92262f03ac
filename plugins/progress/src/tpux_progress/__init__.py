"""How far a program has come: step, epoch, loss and the run's URL, read from its output by patterns."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from pydantic import field_validator

from tpux import Job, Progress, Section, hookimpl
from tpux.fields import Pattern
from tpux_progress.patterns import PATTERNS, ends_compilation, first_step, read_progress

OTHER_TEXT = 8 * 1024
"""Characters of other output after which a program does not compile any more."""


class ProgressSection(Section):
    """Regular expressions that read how far the program has come, in place of tpux' own; null turns one off."""

    step: Pattern | None = PATTERNS["step"]
    """The step: the first group."""
    total: Pattern | None = PATTERNS["total"]
    """The number of all steps: the first group. What follows a step, as in `step 310/1000`, needs no pattern."""
    epoch: Pattern | None = PATTERNS["epoch"]
    """The epoch: the first group."""
    loss: Pattern | None = PATTERNS["loss"]
    """The loss: the first group."""
    compiling: Pattern | None = PATTERNS["compiling"]
    """What says that the program compiles."""
    url: Pattern | None = PATTERNS["url"]
    """The URL of the run: the first group."""

    @field_validator("step", "total", "epoch", "loss", "url")
    @classmethod
    def _has_group(cls, pattern: str | None) -> str | None:
        if pattern and not re.compile(pattern).groups:
            raise ValueError("the pattern has no group around the value, such as step=(\\d+) or run=(https://\\S+)")
        return pattern


@hookimpl
def config_section() -> type[Section]:
    """Return the model of the section `progress`."""
    return ProgressSection


@hookimpl
def progress(job: Job, config: ProgressSection | None, lines: list[str]) -> Progress | None:
    """Return what the lines say; None if they say nothing."""
    del job
    patterns: Mapping[str, str | None] = (
        PATTERNS if config is None else {name: getattr(config, name) for name in PATTERNS}
    )
    text = "".join(f"{line}\n" for line in lines)
    found = replace(read_progress(text, patterns), first_step=first_step(text, patterns["step"]))
    return found if found or ends_compilation(text) or len(text) > OTHER_TEXT else None
