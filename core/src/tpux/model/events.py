"""Everything that can happen to a job: one dataclass per event type, as `events.jsonl` and `on_event` carry them.

A job's state is a fold of its events alone (`tpux.store.fold`), so what a later reader must know stands in the event.
`docs/events.md` is generated from this module (`make docs`).

Compatibility: a reader ignores fields that it does not know, and an event whose type it does not know changes nothing.
A change that an older reader would misread needs a higher `version` of that type: the older reader then refuses it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from tpux.model import json
from tpux.model.failures import Failure, FailureKind
from tpux.model.json import JsonValue
from tpux.model.machines import Allocation, Worker
from tpux.model.progress import Progress
from tpux.model.states import JobState, RequestAction

EVENT_TYPES: dict[str, type[Event]] = {}
"""The classes of this module by their `type`."""


@dataclass(frozen=True, kw_only=True)
class Event:
    """One thing that happened to a job, or that is about to: an intent is written before the action.

    Attributes:
        type: the name of the event type.
        version: the format of this type; raised when an older tpux would misread it.
        at: when it was written, in seconds since the epoch. `Record.write` fills in this and the next two.
        attempt: the number of the job's attempt, from 1; 0 before the first.
        stage: how many times the job was resumed since it last started from scratch.
    """

    type: ClassVar[str] = ""
    version: ClassVar[int] = 1
    at: float = 0.0
    attempt: int = 0
    stage: int = 0

    def __init_subclass__(cls) -> None:
        if cls.type:
            EVENT_TYPES[cls.type] = cls

    def to_json(self) -> dict[str, JsonValue]:
        """Return the event as a line of `events.jsonl` holds it.

        Fields that have their default are in it too: the next version may have another default.
        """
        return {"type": self.type, "version": self.version, **json.dump_fields(self)}


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


@dataclass(frozen=True, kw_only=True)
class Tick(Event):
    """A minute has passed while the supervisor drives the job; for listeners whose section's `ticks` asks for it.

    It is not in `events.jsonl`, and a call that fails is not repeated. There are none while the main loop does not run.
    """


# --- the job ------------------------------------------------------------------------------------


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
        plugins: the plugins that were installed; those among them that are listeners receive all of the job's events.
        token: four random digits, so that the names of TPUs differ between jobs of the same id in two stores.
        takes_over: the ended job whose machines this job takes over; empty if it requests its own.
    """

    type = "created"
    id: str
    user: str
    name: str
    accelerator: str | None = None
    zone: str | None = None
    allocator: str = ""
    workers: int = 1
    plugins: tuple[str, ...] = ()
    token: str = ""
    takes_over: str = ""


@dataclass(frozen=True, kw_only=True)
class StateChanged(Event):
    """The job has entered another state.

    Attributes:
        to: the new state.
        why: the reason, for people.
        hint: to `failed`: what the user can do, beside the failure's own hint.
        release_at: when an ended job's machines are released, in seconds since the epoch; null if they are not.
        kind: to `recovering`: the kind of failure that this restart is counted for, or `loop`.
        restart: to `recovering`: whether the next attempt resumes or starts from scratch.
        reapply: to `recovering`: the machines are released and requested again first.
        solve: to `recovering`: the solvers repair the workers first.
        until: to `recovering`: when the backoff ends, in seconds since the epoch.
        tpu: to `recovering`: the keys of the section `tpu` that override the config's for the machines that are
            requested next, as the rule's plugin wants.
    """

    type = "state-changed"
    to: JobState
    why: str = ""
    hint: str = ""
    release_at: float | None = None
    kind: FailureKind | Literal["loop"] | None = None
    restart: Literal["resume", "rerun"] | None = None
    reapply: bool = False
    solve: bool = False
    until: float | None = None
    tpu: Mapping[str, JsonValue] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.to == "recovering" and None in (self.kind, self.restart, self.until):
            raise ValueError("recovering needs kind, restart and until")


@dataclass(frozen=True, kw_only=True)
class Waiting(Event):
    """What the job waits for has changed.

    Attributes:
        why: what it waits for, for people.
        saved_state: what the allocator asked to be kept for its next step; null leaves it as it was.
        until: when a release ends that can only be waited for, in seconds since the epoch; null otherwise.
        hint: what the user must do before the job can continue, or can do about what it reports; empty if nothing.
    """

    type = "waiting"
    why: str
    saved_state: Mapping[str, JsonValue] | None = None
    until: float | None = None
    hint: str = ""


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
        number: the number of the request; earlier ones that have no event of their own were replaced by this one. 0 if
            a takeover has ended without the machines, which nobody has requested.
        release: stop: release the machines now.
        force: delete: remove the record even if the machines cannot be released.
        keep: stop, setup: keep the machines until a user releases them.
        keep_for: stop: keep the machines at least this long, in seconds.
        grace: stop: seconds after which programs that have not ended are killed, if more than `command.grace_period`.
        reason: stop: why, for people; empty if the user wants it.
        config: resume, rerun: the directory of a changed config, below the job's; empty if it is the same.
        only: setup: the modules to set up; all if empty.
        workers: setup: the workers to set up; all if empty.
        skip_setup: resume: on machines that the last attempt ran on, set up only what was updated since.
        backoff_skipped: resume, rerun: it has ended the backoff of a recovering job.
        to: transfer: the job that is to take over the machines; empty if it has ended without them.
        agreed: transfer: from here on this job neither releases nor uses the machines.
    """

    type = "request-accepted"
    action: RequestAction
    number: int
    release: bool = False
    force: bool = False
    keep: bool = False
    keep_for: float = 0.0
    grace: float = 0.0
    reason: str = ""
    config: str = ""
    only: tuple[str, ...] = ()
    workers: tuple[int, ...] = ()
    skip_setup: bool = False
    backoff_skipped: bool = False
    to: str = ""
    agreed: bool = False


@dataclass(frozen=True, kw_only=True)
class ResolutionUpdated(Event):
    """What a plugin's `resolve` had returned was replaced, such as by `tpux sync`; the set-up that follows uses it.

    Attributes:
        plugin: the plugin.
        values: what `job.resolved` has for it from now on.
    """

    type = "resolution-updated"
    plugin: str
    values: Mapping[str, JsonValue]


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
        changed: the keys, as `section.key`, in which it differs from the former config.
    """

    type = "config-changed"
    config: str
    name: str
    allocator: str
    workers: int
    accelerator: str | None = None
    zone: str | None = None
    changed: tuple[str, ...] = ()


# --- its machines -------------------------------------------------------------------------------


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
class CleanUpStarted(Event):
    """The modules remove what must not stay on the workers of an ended job. The next start sets all up again."""

    type = "clean-up-started"


@dataclass(frozen=True, kw_only=True)
class TakenOver(Event):
    """The job holds the machines of another one, and has to release them. Their labels and leases change after this.

    Attributes:
        job: the other job.
        name: the name under which they were requested.
        allocation: the machines.
        saved_state: what the allocator has kept for its next step.
        previous_owners: the owner's labels that the machines may still have (`ProvisionRequest.previous_owners`).
    """

    type = "taken-over"
    job: str
    name: str
    allocation: Allocation
    saved_state: Mapping[str, JsonValue]
    previous_owners: tuple[Mapping[str, str], ...]


@dataclass(frozen=True, kw_only=True)
class Transferred(Event):
    """The other job has taken over the machines, and their labels name it: this job holds none.

    Attributes:
        to: the other job.
        token: the digits that replace those of `created`: the other job's machines may keep their name.
    """

    type = "transferred"
    to: str
    token: str


@dataclass(frozen=True, kw_only=True)
class ReleaseStarted(Event):
    """The allocator is about to be asked to release the machines: from here on nothing can keep them."""

    type = "release-started"


@dataclass(frozen=True, kw_only=True)
class WorkerUpdated(Event):
    """The allocator describes a worker differently now: a rebuilt VM has published a new host key.

    Attributes:
        worker: the worker as it is described now.
    """

    type = "worker-updated"
    worker: Worker


@dataclass(frozen=True, kw_only=True)
class Released(Event):
    """The allocator has confirmed that nothing of the machines is left.

    Attributes:
        left: what remains all the same, as the job may not delete it; "" if nothing does.
    """

    type = "released"
    left: str = ""


@dataclass(frozen=True, kw_only=True)
class ReleaseScheduled(Event):
    """A user has changed when the machines of an ended job are released.

    Attributes:
        release_at: when, in seconds since the epoch; null if they are kept until a user releases them.
    """

    type = "release-scheduled"
    release_at: float | None


# --- its attempts -------------------------------------------------------------------------------


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
    """The command was confirmed to have started on all its workers."""

    type = "attempt-running"


@dataclass(frozen=True, kw_only=True)
class WorkerExited(Event):
    """The command has ended on one worker.

    Attributes:
        worker: the worker's number.
        code: the exit code, 128 + n after signal n; null if it is unknown.
        reason: why it ended, if that is known beyond the exit code.
        ended_at: when it ended by the worker's clock, in seconds since the epoch; null if that is unknown.
        signal: a signal that the machine, not tpux, sent to its processes, such as `TERM` in a shutdown; else empty.
    """

    type = "worker-exited"
    worker: int
    code: int | None
    reason: str = ""
    ended_at: float | None = None
    signal: str = ""


@dataclass(frozen=True, kw_only=True)
class PreemptionAnnounced(Event):
    """A worker got the notice of a preemption while the command ran; the attempt ends as preempted.

    Attributes:
        worker: the worker's number.
        evidence: what the worker says about it.
    """

    type = "preemption-announced"
    worker: int
    evidence: str


@dataclass(frozen=True, kw_only=True)
class AttemptTerminating(Event):
    """The command is about to be terminated on all workers, because the attempt has failed.

    Attributes:
        failure: why.
    """

    type = "attempt-terminating"
    failure: Failure


@dataclass(frozen=True, kw_only=True)
class AttemptEnded(Event):
    """The attempt is over on all workers.

    Attributes:
        failure: what ended it; null if the program succeeded, or was stopped.
        stopped: a user stopped it.
        restarts_reset: it ran long enough that the job gets all its restarts back.
        finished: what shows that the program had finished, where a detector says so; empty otherwise.
        progress: how far the program came, as far as its output says; null if it says nothing.
        repeated_steps: how many steps this attempt had to repeat because an earlier one had failed or was stopped; of
            these the latest one whose output named a step counts. 0 after a rerun.
    """

    type = "attempt-ended"
    failure: Failure | None
    stopped: bool = False
    restarts_reset: bool = False
    finished: str = ""
    progress: Progress | None = None
    repeated_steps: int = 0


@dataclass(frozen=True, kw_only=True)
class Warned(Event):
    """Something threatens the job, which goes on: written once for each kind in an attempt.

    Attributes:
        kind: what a monitor found to be nearly used up, such as `memory`, or `disk` with the path where it is mounted;
            `checkpoint`: a program that has saved one before has saved no new one for `watch.checkpoint_expected`;
            or `stragglers`: the program has ended with exit code 0 on the other workers, and no other has ended for
            `watch.straggler_grace`; or `machines`: the allocator cannot ask about them, request them or release them
            before the user has done what `hint` says: written each time that this begins.
        workers: on which workers.
        text: what it is; of a resource, how much the first of the workers has left.
        hint: the commands that show more, or end it; empty if there are none.
    """

    type = "warned"
    kind: str
    workers: tuple[int, ...]
    text: str
    hint: str = ""


@dataclass(frozen=True, kw_only=True)
class Collected(Event):
    """A detector has read what the program left on a worker.

    Attributes:
        worker: the worker's number.
        plugin: the detector.
        data: what it returned.
    """

    type = "collected"
    worker: int
    plugin: str
    data: Mapping[str, JsonValue]


@dataclass(frozen=True, kw_only=True)
class FilesCollected(Event):
    """The files of `command.collect` were fetched from the workers, after the end of the attempt.

    Attributes:
        directory: where they are on the machine of the supervisor; those of each worker are in a directory below it.
        files: how many they are.
        size: how many bytes they have.
        missing: what was not fetched, and why.
    """

    type = "files-collected"
    directory: str
    files: int
    size: int
    missing: tuple[str, ...] = ()


# --- reading ------------------------------------------------------------------------------------


class NewerEventError(ValueError):
    """An event was written by a newer tpux, and this one would misread it."""


def _replaced(data: Mapping[str, JsonValue]) -> Mapping[str, JsonValue]:
    """Return an event of a type that tpux does not write any more as the one that has replaced it."""
    match data.get("type"):
        case "resource-low":
            return {**data, "type": "warned", "kind": data.get("resource"), "text": data.get("message")}
        case "stragglers-reported":
            return {**data, "type": "warned", "kind": "stragglers", "text": data.get("message")}
        case "transfer-started":
            return {**data, "type": "request-accepted", "action": "transfer", "number": 0, "agreed": True}
        case "transfer-cancelled":
            return {**data, "type": "request-accepted", "action": "transfer", "number": 0}
        case _:
            return data


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
    data = _replaced(data)
    version, event = data.get("version", 1), EVENT_TYPES.get(str(data["type"]))
    if event is None:
        stamp = {name: data[name] for name in ("at", "attempt", "stage") if name in data}
        return json.build(UnknownEvent, {**stamp, "facts": dict(data)})
    if isinstance(version, int) and version > event.version:
        raise NewerEventError(f"event {kind!r} has version {version}, this tpux knows {event.version}")
    try:
        return json.build(event, data)
    except ValueError as error:
        raise ValueError(f"event {kind!r}: {error}") from error
