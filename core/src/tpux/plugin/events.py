"""Everything that can happen to a job: one dataclass per event type, as `events.jsonl` and `on_event` carry them.

A job's state is a fold of its events alone (`tpux.store.fold`), so what a later reader must know stands in the event.
`docs/events.md` is generated from this module (`make docs`).

Compatibility: a reader ignores fields that it does not know, and an event whose type it does not know changes nothing.
A change that an older reader would misread needs a higher `version` of that type: the older reader then refuses it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from types import UnionType
from typing import TYPE_CHECKING, ClassVar, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from tpux.plugin.failures import Failure, FailureKind
from tpux.plugin.machines import Allocation, JsonValue

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

D = TypeVar("D", bound="DataclassInstance")

JobState = Literal[
    "pending", "provisioning", "setting-up", "running", "recovering", "stopping", "stopped", "succeeded", "failed"
]
RequestAction = Literal["stop", "resume", "rerun", "setup", "delete"]


class NewerEventError(ValueError):
    """An event was written by a newer tpux, and this one would misread it."""


@dataclass(frozen=True, kw_only=True)
class Event:
    """One thing that happened to a job, or that is about to: an intent is written before the action.

    Attributes:
        type: the name of the event type.
        version: the format of this type; raised when an older tpux would misread it.
        at: when it was written, in seconds since the epoch.
    """

    type: ClassVar[str] = ""
    version: ClassVar[int] = 1
    at: float

    def to_json(self) -> dict[str, JsonValue]:
        """Return the event as a line of `events.jsonl` holds it. Fields that have their default are left out."""
        facts = {field.name: getattr(self, field.name) for field in fields(self)}
        given = {name: _to_json(value) for name, value in facts.items() if value != self._defaults().get(name, MISSING)}
        return {"type": self.type, "version": self.version, **given}

    @classmethod
    @cache
    def _defaults(cls) -> dict[str, object]:
        return {field.name: field.default for field in fields(cls)}


@dataclass(frozen=True, kw_only=True)
class Created(Event):
    """The job was created; always the first event.

    Attributes:
        id: the job's id.
        user: whose job it is.
        name: the job's name.
        accelerator: the accelerator that the config names, the first of a list.
        zone: the zone that the config names, the first of a list.
        allocator: the plugin that gets the machines.
        workers: how many workers there will be; 0 if only the allocator knows.
    """

    type = "created"
    id: str
    user: str
    name: str
    accelerator: str | None = None
    zone: str | None = None
    allocator: str = ""
    workers: int = 1


@dataclass(frozen=True, kw_only=True)
class StateChanged(Event):
    """The job has entered another state.

    Attributes:
        to: the new state.
        why: the reason, for people.
        release_at: when an ended job's machines are released, in seconds since the epoch; null if they are not.
        kind: to `recovering`: the kind of failure that this restart is counted for, or `loop`.
        restart: to `recovering`: whether the next attempt resumes or starts from scratch.
        reapply: to `recovering`: the machines are released and requested again first.
        solve: to `recovering`: the solvers repair the workers first.
        until: to `recovering`: when the backoff ends, in seconds since the epoch.
    """

    type = "state-changed"
    to: JobState
    why: str = ""
    release_at: float | None = None
    kind: FailureKind | Literal["loop"] | None = None
    restart: Literal["resume", "rerun"] | None = None
    reapply: bool = False
    solve: bool = False
    until: float | None = None

    def __post_init__(self) -> None:
        if self.to == "recovering" and None in (self.kind, self.restart, self.until):
            raise ValueError("recovering needs kind, restart and until")


@dataclass(frozen=True, kw_only=True)
class Waiting(Event):
    """What the job waits for has changed.

    Attributes:
        why: what it waits for, for people.
        saved_state: what the allocator asked to be kept for its next step; null leaves it as it was.
    """

    type = "waiting"
    why: str
    saved_state: Mapping[str, JsonValue] | None = None


@dataclass(frozen=True, kw_only=True)
class AllocationRequested(Event):
    """Machines are about to be requested: from here on a release is pending.

    Attributes:
        name: the name of the request.
        allocator: the plugin that is asked.
    """

    type = "allocation-requested"
    name: str
    allocator: str


@dataclass(frozen=True, kw_only=True)
class Allocated(Event):
    """The machines are ready.

    Attributes:
        allocation: the machines and their workers.
        saved_state: what the allocator asked to be kept; null leaves it as it was.
    """

    type = "allocated"
    allocation: Allocation
    saved_state: Mapping[str, JsonValue] | None = None


@dataclass(frozen=True, kw_only=True)
class Released(Event):
    """The allocator has confirmed that nothing of the machines is left."""

    type = "released"


@dataclass(frozen=True, kw_only=True)
class ReleaseScheduled(Event):
    """A user has changed when the machines of an ended job are released.

    Attributes:
        release_at: when, in seconds since the epoch; null if they are kept until a user releases them.
    """

    type = "release-scheduled"
    release_at: float | None


@dataclass(frozen=True, kw_only=True)
class AttemptStarted(Event):
    """The command is about to be started on the workers.

    Attributes:
        attempt: its number, from 1.
        stage: how many times the job was resumed since it last started from scratch.
        resume: whether it resumes from an earlier attempt's output.
        workers: the workers that run the command.
        output_dir: the output directory of this attempt, on the workers.
        previous_output_dir: the output directory that it resumes from; empty if it starts from scratch.
    """

    type = "attempt-started"
    attempt: int
    stage: int
    resume: bool
    workers: tuple[int, ...]
    output_dir: str
    previous_output_dir: str = ""


@dataclass(frozen=True, kw_only=True)
class AttemptRunning(Event):
    """The command was confirmed to have started on all its workers.

    Attributes:
        attempt: the attempt's number.
    """

    type = "attempt-running"
    attempt: int


@dataclass(frozen=True, kw_only=True)
class WorkerEnded(Event):
    """The command has ended on one worker.

    Attributes:
        attempt: the attempt's number.
        worker: the worker's number.
        code: the exit code, 128 + n after signal n; null if it is unknown.
        reason: why it ended, if that is known beyond the exit code.
    """

    type = "worker-ended"
    attempt: int
    worker: int
    code: int | None
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class AttemptEnded(Event):
    """The attempt is over on all workers.

    Attributes:
        attempt: the attempt's number.
        failure: what ended it; null if the program succeeded, or was stopped.
        stopped: a user stopped it.
        restarts_reset: it ran long enough that the job gets all its restarts back.
    """

    type = "attempt-ended"
    attempt: int
    failure: Failure | None
    stopped: bool = False
    restarts_reset: bool = False


@dataclass(frozen=True, kw_only=True)
class Failed(Event):
    """Something failed outside an attempt: while machines were requested or workers set up.

    Attributes:
        failure: what failed.
    """

    type = "failed"
    failure: Failure


@dataclass(frozen=True, kw_only=True)
class RequestAccepted(Event):
    """A user's request has taken effect.

    Attributes:
        action: what was requested.
        id: the id of the request.
        release: stop: release the machines now.
        keep: stop, setup: keep the machines until a user releases them.
        keep_for: stop: keep the machines at least this long, in seconds.
        config: resume, rerun: the directory of a changed config, below the job's; empty if it is the same.
        only: setup: the modules to set up; all if empty.
        workers: setup: the workers to set up; all if empty.
    """

    type = "request-accepted"
    action: RequestAction
    id: str
    release: bool = False
    keep: bool = False
    keep_for: float = 0.0
    config: str = ""
    only: tuple[str, ...] = ()
    workers: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ConfigChanged(Event):
    """A resume or a rerun with another config has given it to the job.

    Attributes:
        config: the directory of the config, below the job's.
        name: the job's name.
        allocator: the plugin that gets the machines.
        workers: the number of workers; 0 if it is not known before provisioning.
        accelerator: the accelerator to request first, if the config names one.
        zone: the zone to request it in first, if the allocator has zones.
    """

    type = "config-changed"
    config: str
    name: str
    allocator: str
    workers: int
    accelerator: str | None = None
    zone: str | None = None


@dataclass(frozen=True, kw_only=True)
class BackoffSkipped(Event):
    """A user's resume has ended the backoff of a recovering job."""

    type = "backoff-skipped"


@dataclass(frozen=True, kw_only=True)
class UnknownEvent(Event):
    """An event of a type that this version does not know; it changes nothing.

    Attributes:
        facts: the event as it was read.
    """

    facts: Mapping[str, JsonValue]

    def to_json(self) -> dict[str, JsonValue]:
        """Return the event as it was read."""
        return dict(self.facts)


EVENT_TYPES: dict[str, type[Event]] = {
    event.type: event
    for event in (
        Created,
        StateChanged,
        Waiting,
        AllocationRequested,
        Allocated,
        Released,
        ReleaseScheduled,
        AttemptStarted,
        AttemptRunning,
        WorkerEnded,
        AttemptEnded,
        Failed,
        RequestAccepted,
        BackoffSkipped,
        ConfigChanged,
    )
}


def from_json(data: object, *, strict: bool = False) -> Event:
    """Return the event that a line of `events.jsonl` holds.

    Args:
        data: the line, parsed.
        strict: refuse unknown types, unknown fields and unknown choices: for events that are about to be written.

    Raises:
        NewerEventError: the event was written by a newer tpux, which has changed what its type means.
        ValueError: a field is missing or of another type.
    """
    if not isinstance(data, Mapping):
        raise ValueError("not a JSON object")  # noqa: TRY004  (one exception type for every invalid line)
    kind, version = data.get("type"), data.get("version", 1)
    event = EVENT_TYPES.get(kind) if isinstance(kind, str) else None
    if event is None:
        if strict or not isinstance(kind, str):
            raise ValueError(f"unknown event type {kind!r}")
        return UnknownEvent(at=cast("float", _convert(data.get("at"), float, strict=False)), facts=data)
    if isinstance(version, int) and version > event.version:
        raise NewerEventError(f"event {kind!r} has version {version}, this tpux knows {event.version}")
    facts = {key: value for key, value in data.items() if key not in {"type", "version"}}
    try:
        return _build(event, facts, strict=strict)
    except ValueError as error:
        raise ValueError(f"event {kind!r}: {error}") from error


@cache
def _types(model: type[DataclassInstance]) -> dict[str, object]:
    """Return the types of a dataclass's fields (`get_type_hints` is slow)."""
    hints = get_type_hints(model, vars(sys.modules[model.__module__]))
    return {name: hint for name, hint in hints.items() if get_origin(hint) is not ClassVar}


def _build(model: type[D], data: Mapping[str, JsonValue], *, strict: bool) -> D:
    """Return the dataclass made of JSON, each field checked against its type."""
    hints = _types(model)
    given: dict[str, object] = {}
    for field in fields(model):
        if field.name in data:
            try:
                given[field.name] = _convert(data[field.name], hints[field.name], strict=strict)
            except ValueError as error:
                raise ValueError(f"{field.name}: {error}") from error
        elif field.default is MISSING and field.default_factory is MISSING:
            raise ValueError(f"{field.name} is missing")
    if strict and (unknown := data.keys() - hints.keys()):
        raise ValueError(f"unknown field {min(unknown)}")
    return model(**given)


def _convert(value: JsonValue, hint: object, *, strict: bool) -> object:
    """Return a JSON value as a field's type holds it."""
    origin, args = get_origin(hint), get_args(hint)
    if origin in {Union, UnionType}:
        problem = ""
        for choice in args:
            try:
                return _convert(value, choice, strict=strict)
            except ValueError as error:
                problem = problem or str(error)
        raise ValueError(problem)
    if origin is tuple and isinstance(value, (list, tuple)):
        return tuple(_convert(item, args[0], strict=strict) for item in value)
    if isinstance(hint, type) and is_dataclass(hint) and isinstance(value, Mapping):
        return _build(hint, value, strict=strict)
    if not _fits(value, hint, strict=strict):
        raise ValueError(f"{value!r} is not {hint.__name__ if isinstance(hint, type) else hint}")
    return value


def _fits(value: JsonValue, hint: object, *, strict: bool) -> bool:
    origin = get_origin(hint)
    if origin is Literal:
        return value in get_args(hint) or (isinstance(value, str) and not strict)  # a newer tpux may know more choices
    if origin is not None:
        return origin is not tuple and isinstance(value, Mapping)
    return type(value) is hint or (hint is float and type(value) is int)


def _to_json(value: object) -> JsonValue:
    if isinstance(value, (tuple, list)):
        return [_to_json(item) for item in value]
    if isinstance(value, Mapping):
        return {key: _to_json(item) for key, item in value.items()}
    if is_dataclass(value):
        return {field.name: _to_json(getattr(value, field.name)) for field in fields(value)}
    return cast("JsonValue", value)
