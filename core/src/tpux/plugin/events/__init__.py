"""Everything that can happen to a job: one dataclass per event type, as `events.jsonl` and `on_event` carry them.

A job's state is a fold of its events alone (`tpux.store.fold`), so what a later reader must know stands in the event.
`docs/events.md` is generated from this package (`make docs`).

Compatibility: a reader ignores fields that it does not know, and an event whose type it does not know changes nothing.
A change that an older reader would misread needs a higher `version` of that type: the older reader then refuses it.
"""

from __future__ import annotations

from collections.abc import Mapping

from tpux.plugin import dataclass_json
from tpux.plugin.events.event import EVENT_TYPES as EVENT_TYPES
from tpux.plugin.events.event import Event as Event
from tpux.plugin.events.event import UnknownEvent as UnknownEvent
from tpux.plugin.events.job import BackoffSkipped as BackoffSkipped
from tpux.plugin.events.job import ClaimsDropped as ClaimsDropped
from tpux.plugin.events.job import ConfigChanged as ConfigChanged
from tpux.plugin.events.job import Created as Created
from tpux.plugin.events.job import Failed as Failed
from tpux.plugin.events.job import JobState as JobState
from tpux.plugin.events.job import RequestAccepted as RequestAccepted
from tpux.plugin.events.job import RequestAction as RequestAction
from tpux.plugin.events.job import ResolutionUpdated as ResolutionUpdated
from tpux.plugin.events.job import StateChanged as StateChanged
from tpux.plugin.events.job import Waiting as Waiting
from tpux.plugin.events.machines import Allocated as Allocated
from tpux.plugin.events.machines import AllocationRequested as AllocationRequested
from tpux.plugin.events.machines import CleanUpStarted as CleanUpStarted
from tpux.plugin.events.machines import Released as Released
from tpux.plugin.events.machines import ReleaseScheduled as ReleaseScheduled
from tpux.plugin.events.machines import ReleaseStarted as ReleaseStarted
from tpux.plugin.events.machines import TakenOver as TakenOver
from tpux.plugin.events.machines import TransferCancelled as TransferCancelled
from tpux.plugin.events.machines import Transferred as Transferred
from tpux.plugin.events.machines import TransferStarted as TransferStarted
from tpux.plugin.events.machines import WorkerUpdated as WorkerUpdated

# Imported last: EVENT_TYPES and docs/events.md have the order of the imports.
# isort: split
from tpux.plugin.events.attempt import AttemptEnded as AttemptEnded
from tpux.plugin.events.attempt import AttemptRunning as AttemptRunning
from tpux.plugin.events.attempt import AttemptStarted as AttemptStarted
from tpux.plugin.events.attempt import AttemptTerminating as AttemptTerminating
from tpux.plugin.events.attempt import Collected as Collected
from tpux.plugin.events.attempt import PreemptionAnnounced as PreemptionAnnounced
from tpux.plugin.events.attempt import ResourceLow as ResourceLow
from tpux.plugin.events.attempt import StragglersReported as StragglersReported
from tpux.plugin.events.attempt import WorkerEnded as WorkerEnded


class NewerEventError(ValueError):
    """An event was written by a newer tpux, and this one would misread it."""


def from_json(data: object) -> Event:
    """Return the event that a line of `events.jsonl` holds.

    Args:
        data: the line, parsed.

    Raises:
        NewerEventError: the event was written by a newer tpux, which has changed what its type means.
        ValueError: a field is missing or of another type.
    """
    if not isinstance(data, Mapping) or not isinstance(kind := data.get("type"), str) or "at" not in data:
        raise ValueError("not a JSON object with a type and a time")
    version, event = data.get("version", 1), EVENT_TYPES.get(kind)
    if event is None:
        return dataclass_json.build(UnknownEvent, {"at": data.get("at"), "facts": dict(data)})
    if isinstance(version, int) and version > event.version:
        raise NewerEventError(f"event {kind!r} has version {version}, this tpux knows {event.version}")
    try:
        return dataclass_json.build(event, data)
    except ValueError as error:
        raise ValueError(f"event {kind!r}: {error}") from error
