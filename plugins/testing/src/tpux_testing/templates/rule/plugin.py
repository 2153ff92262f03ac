"""Rule `sample`: resumes after a failure of the program a few times, and on new machines after a preemption."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field

from tpux import Action, Failure, Section, hookimpl


class SampleSection(Section):
    """How often the rule `sample` resumes."""

    times: int = Field(3, ge=0)
    """Restarts in a row after failures of the program."""


@hookimpl
def config_section() -> type[Section]:
    """Return the model of the plugin's section."""
    return SampleSection


@hookimpl
def on_preempt(config: SampleSection, failure: Failure, restarts: Mapping[str, int]) -> Action:
    """Resume after failures of the program, a few times; and on new machines after a preemption."""
    if failure.kind == "preempted":
        return Action("resume", reapply=True)
    if failure.kind in {"program", "unknown"} and restarts[failure.kind] < config.times:
        return Action("resume")
    return Action()
