"""Events of a job as a whole: its creation, its state, its config, and the requests of users."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from tpux.plugin.events.event import Event
from tpux.plugin.failures import Failure, FailureKind
from tpux.plugin.machines import JsonValue

JobState = Literal[
    "pending", "provisioning", "setting-up", "running", "recovering", "stopping", "stopped", "succeeded", "failed"
]
RequestAction = Literal["stop", "resume", "rerun", "setup", "delete", "transfer"]


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
        lost: to `recovering`: the slices that are replaced; the others are kept. All are replaced if empty.
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
    lost: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.to == "recovering" and None in (self.kind, self.restart, self.until):
            raise ValueError("recovering needs kind, restart and until")


@dataclass(frozen=True, kw_only=True)
class ClaimsDropped(Event):
    """The store was copied, and this is the job of the copy: the original's job has the machines and continues.

    A job that had not ended is stopped; nothing was done to its program. Listeners do not receive this event.

    Attributes:
        token: the digits that replace those of `created`.
    """

    type = "claims-dropped"
    token: str


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
        number: the number of the request; earlier ones that have no event of their own were replaced by this one.
        release: stop: release the machines now.
        forget: delete: remove the record even if the machines cannot be released.
        keep: stop, setup: keep the machines until a user releases them.
        keep_for: stop: keep the machines at least this long, in seconds.
        config: resume, rerun: the directory of a changed config, below the job's; empty if it is the same.
        only: setup: the modules to set up; all if empty.
        workers: setup: the workers to set up; all if empty.
        skip_setup: resume: on machines that the last attempt ran on, set up only what was updated since.
        to: transfer: the job that takes over the machines.
    """

    type = "request-accepted"
    action: RequestAction
    number: int
    release: bool = False
    forget: bool = False
    keep: bool = False
    keep_for: float = 0.0
    config: str = ""
    only: tuple[str, ...] = ()
    workers: tuple[int, ...] = ()
    skip_setup: bool = False
    to: str = ""


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


@dataclass(frozen=True, kw_only=True)
class BackoffSkipped(Event):
    """A user's resume or rerun has ended the backoff of a recovering job."""

    type = "backoff-skipped"
