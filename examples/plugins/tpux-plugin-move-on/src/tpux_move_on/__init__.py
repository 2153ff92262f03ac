"""Rule `move-on`: resumes after preemptions, in the next zone after three of them within an hour."""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import Field

from tpux import Action, Failure, Job, Section, api, events, hookimpl
from tpux.fields import Duration


class MoveOnSection(Section):
    """When the rule `move-on` goes to another zone."""

    zones: list[str] = Field(min_length=1)
    """The zones, in turn; the first one is that of the section `tpu`."""
    preemptions: int = Field(3, ge=1)
    """So many preemptions ..."""
    within: Duration = 3600
    """... within this time lead to the next zone."""


@hookimpl
def config_section() -> type[Section]:
    """Return the model of the plugin's section."""
    return MoveOnSection


@hookimpl
def on_preempt(job: Job, config: MoveOnSection | None, failure: Failure) -> Action:
    """Resume on new machines after each preemption, in the next zone after several within an hour."""
    if failure.kind != "preempted" or config is None:
        return Action()
    moves = count_moves(preemptions_of(job), config.preemptions, config.within)
    zone = config.zones[moves % len(config.zones)]
    return Action("resume", reapply=True, tpu={"zone": zone} if moves else {})


def preemptions_of(job: Job) -> list[float]:
    """Return when the job's machines were preempted while it ran, this time included."""
    ended = (event for event in api.events(job.id) if isinstance(event, events.AttemptEnded))
    return [event.at for event in ended if event.failure and event.failure.kind == "preempted"]


def count_moves(times: Iterable[float], preemptions: int, within: float) -> int:
    """Return how often the job has moved on; the preemptions that led to a move count for no other one."""
    moves, recent = 0, list[float]()
    for time in times:
        recent = [one for one in recent if time - one <= within] + [time]
        if len(recent) >= preemptions:
            moves, recent = moves + 1, []
    return moves
