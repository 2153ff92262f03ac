"""The state of a job and the table of allowed transitions. `tpux.store.fold` computes the state from the events."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from tpux.model import json
from tpux.model.failures import Action, Failure
from tpux.model.json import JsonValue
from tpux.model.progress import Progress
from tpux.model.states import JobState, RequestAction

if TYPE_CHECKING:
    from tpux.model.events import RequestAccepted
    from tpux.model.machines import Allocation

TRANSITIONS: dict[JobState, frozenset[JobState]] = {
    "pending": frozenset({"provisioning", "stopping", "failed"}),
    "provisioning": frozenset({"setting-up", "recovering", "stopping", "failed"}),
    "setting-up": frozenset({"running", "recovering", "stopping", "stopped", "failed"}),
    "running": frozenset({"recovering", "stopping", "succeeded", "failed"}),
    "recovering": frozenset({"provisioning", "setting-up", "recovering", "stopping", "failed"}),
    "stopping": frozenset({"stopped", "succeeded"}),
    "stopped": frozenset({"pending"}),
    "succeeded": frozenset({"pending"}),
    "failed": frozenset({"pending"}),
}
ENDS: frozenset[JobState] = frozenset({"stopped", "succeeded", "failed"})


@dataclass(frozen=True)
class Run:
    """The current attempt. Before the first, one without workers that has ended.

    Attributes:
        workers: the workers that run the command.
        output_dir: its output directory on the workers.
        previous_output_dir: the output directory that it resumes from; "" if it starts from scratch.
        resume: whether it resumes from an earlier attempt's output.
        round: `State.round` when it started.
        started_at: when it started.
        running: the command was confirmed to have started on all workers, and has not ended.
        ended: it has ended, or its end is at least written.
        succeeded: it has succeeded, and nothing has started the job again since.
        lasted: how many seconds it took, once it has ended.
        notice: what the first worker says that got the notice of a preemption; "" if none did.
        notice_worker: that worker.
        failure: why tpux terminates the command, or has terminated it; None if it does not.
    """

    workers: tuple[int, ...] = ()
    output_dir: str = ""
    previous_output_dir: str = ""
    resume: bool = False
    round: int = -1
    started_at: float = 0.0
    running: bool = False
    ended: bool = True
    succeeded: bool = False
    lasted: float = 0.0
    notice: str = ""
    notice_worker: int = 0
    failure: Failure | None = None


class Ending(NamedTuple):
    """How the command ended on one worker. A named tuple is faster to read than a dataclass, and there are many.

    Attributes:
        code: the exit code; None if it is unknown.
        reason: why it ended, if that is known beyond the exit code.
        at: when it ended by the worker's clock, or when that was observed.
        signal: a signal that the machine, not tpux, sent to its processes; "" if none.
    """

    code: int | None
    reason: str
    at: float
    signal: str = ""


@dataclass(frozen=True)
class State:
    """The state of a job, computed from its events alone.

    Times are in seconds since the epoch.

    Attributes:
        since: when the job entered its state.
        why: what the job waits for, for people.
        hint: what the user must do before the job can continue, or can do about `why`; "" if nothing.
        end_why: why the job has ended; "" until then. Meanwhile `why` may say what its release waits for.
        waiting_until: when a release ends that can only be waited for; None otherwise.
        requested: machines were, or may have been, requested from the allocator and are not released yet.
        request_name: the name under which they were requested; a changed config may have another one.
        allocation: the machines that the job holds (`machines` is the same as an object).
        saved_state: what the allocator asked to be kept for its next step.
        run: the current attempt.
        endings: how the command of the current attempt ended, by worker.
        collected: what detectors have read on the workers in the current attempt, by worker and plugin.
        files_collected: the last attempt after which the files of `command.collect` were fetched; 0 if none was.
        outputs: the output directories of the attempts since the last start from scratch that have ended.
        failure: what ended the last attempt, or failed before one.
        restarts: restarts in a row, by kind of failure.
        reapplied: how many of them requested new machines.
        action: what recovering does.
        tpu: the keys that override the section `tpu` of the config for the machines that the job requests or holds.
        backoff_until: until when recovering waits.
        release_at: when the machines are released; None if no release is scheduled.
        release_after: how many seconds that was away when it was scheduled.
        releasing: the release of the machines has begun.
        kept: the machines are kept until a user releases them (`tpux stop --keep`).
        last_request_number: the number of the last user request that has taken effect.
        last_request: that request, merged with the stops before it (`request` is the same as an object).
        from_scratch: the next attempt starts from scratch.
        config: the directory of the config below the job's; empty until a resume or a rerun has changed it.
        round: how many times the workers were set up; no step runs twice in one round.
        token: random digits that tell the job from those of the same id in other stores.
        resolved: what has replaced the stored answers of plugins' `resolve`, by plugin.
        updated: the plugins whose answers were replaced since an attempt last started.
        prepared: the last attempt ran on the machines that the job holds, and nothing was removed from them since, nor
            set up by `tpux setup`, which may have broken off.
        cleaning_up: a clean-up of the workers has begun since the job ended.
        takes_over: the ended job whose machines this job is to take over, until their labels name this one; "" if none.
        transfer_from: the job whose machines it has taken over; "" if none.
        previous_owners: the labels of earlier owners that the machines may still have.
        transfer_to: the job that is taking over the machines: meanwhile this job does nothing with them; "" if none.
        progress: how far the last attempt came that has ended; None if that is unknown, or after a start from scratch.
        reached: the last step of the latest attempt whose output named one, if it failed or was stopped since the last
            success or rerun; the steps up to it that the next attempt repeats are lost time. None if there is none.
    """

    id: str
    user: str
    name: str
    created_at: float
    updated_at: float
    since: float
    accelerator: str | None = None
    zone: str | None = None
    allocator: str = ""
    workers: int = 1
    state: JobState = "pending"
    why: str = ""
    hint: str = ""
    end_why: str = ""
    waiting_until: float | None = None
    attempt: int = 0
    stage: int = 0
    requested: bool = False
    request_name: str = ""
    allocation: dict[str, JsonValue] | None = None
    saved_state: dict[str, JsonValue] = field(default_factory=dict)
    run: Run = Run()
    endings: Mapping[int, Ending] = field(default_factory=dict)
    collected: Mapping[int, Mapping[str, Mapping[str, JsonValue]]] = field(default_factory=dict)
    files_collected: int = 0
    outputs: tuple[str, ...] = ()
    failure: Failure | None = None
    restarts: dict[str, int] = field(default_factory=dict)
    reapplied: int = 0
    preemptions: int = 0
    action: Action = field(default_factory=Action)
    tpu: dict[str, JsonValue] = field(default_factory=dict)
    backoff_until: float = 0.0
    release_at: float | None = None
    release_after: float = 0.0
    releasing: bool = False
    kept: bool = False
    last_request_number: int = 0
    last_request: dict[str, JsonValue] = field(default_factory=dict)
    from_scratch: bool = True
    config: str = ""
    round: int = 0
    token: str = ""
    resolved: dict[str, dict[str, JsonValue]] = field(default_factory=dict)
    updated: tuple[str, ...] = ()
    prepared: bool = False
    cleaning_up: bool = False
    takes_over: str = ""
    transfer_from: str = ""
    previous_owners: list[dict[str, str]] = field(default_factory=list)
    transfer_to: str = ""
    progress: Progress | None = None
    reached: int | None = None

    @property
    def ended(self) -> bool:
        """True if the job has succeeded, failed or was stopped; its machines may still be waiting for their release."""
        return self.state in ENDS

    @property
    def done(self) -> bool:
        """True if nothing is left to do: the job has ended, and no release, transfer or deletion is to follow."""
        waits = self.release_at is not None or self.transfer_to
        return self.ended and not waits and self.last_request.get("action") != "delete"

    @property
    def resume_follows(self) -> bool:
        """True if `tpux restart` or `tpux restart --setup` has stopped the job: the same command resumes it."""
        return (
            self.state == "stopped"
            and self.last_request.get("action") == "stop"
            and bool(self.last_request.get("keep_for"))
        )

    def scratch_after(self, action: RequestAction) -> bool:
        """Return whether the next attempt starts from scratch once a request of this kind has taken effect.

        The last of rerun and resume decides: a rerun may have been stopped before its attempt began. The resume of
        `tpux restart --setup` and `tpux restart` does not count: they start again what they have stopped.
        """
        if action == "rerun":
            return True
        reboots = self.last_request.get("action") == "stop" and self.last_request.get("keep_for")
        return self.from_scratch and (action != "resume" or bool(reboots))

    @property
    def waits_for_takeover(self) -> bool:
        """True if the job is to take over the machines of another one, and does not hold them yet."""
        return bool(self.takes_over) and self.transfer_from != self.takes_over

    @property
    def release_promised(self) -> bool:
        """True if the job has ended and its machines are being released, or a user was promised that they will be."""
        promised = self.release_at is not None and self.last_request.get("release") is True
        return self.ended and self.requested and (self.releasing or promised)

    @property
    def attempt_ready(self) -> bool:
        """True if `attempt-started` is already written for the current round of set-up."""
        return self.run.round == self.round

    @property
    def attempt_open(self) -> bool:
        """True if an attempt has started and its end is not written."""
        return not self.run.ended

    @cached_property
    def request(self) -> RequestAccepted | None:
        """The last user request that has taken effect."""
        from tpux.model.events import RequestAccepted

        return json.build(RequestAccepted, self.last_request) if self.last_request else None

    @property
    def setup_only(self) -> RequestAccepted | None:
        """The `tpux setup` that started the job; None if the job is to run its command."""
        return self.request if self.last_request.get("action") == "setup" else None

    @property
    def modules_to_set_up(self) -> tuple[str, ...] | None:
        """The modules that `tpux restart` sets up; None if all are, as for any other start and on new machines."""
        skip = self.prepared and self.last_request.get("action") == "resume" and self.last_request.get("skip_setup")
        return self.updated if skip else None

    @cached_property
    def machines(self) -> Allocation | None:
        """The allocation that the job holds."""
        if self.allocation is None:
            return None
        from tpux.model.machines import Allocation

        return json.build(Allocation, self.allocation)
