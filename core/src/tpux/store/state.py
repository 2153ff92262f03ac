"""The state of a job and the table of allowed transitions. `tpux.store.fold` computes the state from the events."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from tpux.plugin.events import JobState
    from tpux.plugin.failures import Action, Failure
    from tpux.plugin.machines import Allocation, JsonValue

TRANSITIONS: dict[JobState, frozenset[JobState]] = {
    "pending": frozenset({"provisioning", "stopping", "failed"}),
    "provisioning": frozenset({"setting-up", "recovering", "stopping", "failed"}),
    "setting-up": frozenset({"running", "recovering", "stopping", "stopped", "failed"}),
    "running": frozenset({"recovering", "stopping", "succeeded", "failed"}),
    "recovering": frozenset({"provisioning", "setting-up", "stopping", "failed"}),
    "stopping": frozenset({"stopped"}),
    "stopped": frozenset({"pending"}),
    "succeeded": frozenset({"pending"}),
    "failed": frozenset({"pending"}),
}
ENDS: frozenset[JobState] = frozenset({"stopped", "succeeded", "failed"})


@dataclass(frozen=True)
class State:
    """The state of a job, computed from its events alone.

    Times are in seconds since the epoch.

    Attributes:
        since: when the job entered its state.
        why: what the job waits for, for people.
        requested: machines were, or may have been, requested from the allocator and are not released yet.
        request_name: the name under which they were requested; a changed config may have another one.
        allocation: the machines that the job holds (`machines` is the same as an object).
        saved_state: what the allocator asked to be kept for its next step.
        run: the current attempt: workers, output_dir, previous_output_dir, resume, running, ended, round, started_at,
            and once it has ended lasted (seconds).
        endings: how the current attempt ended, by worker: code, at, reason.
        outputs: the attempts since the last start from scratch: attempt, dir, failure.
        failure: what ended the last attempt, or failed before one (`last_failure` is the same as an object).
        restarts: restarts in a row, by kind of failure.
        action: what recovering does: restart, reapply, solve, until.
        release_at: when the machines are released; None if no release is scheduled.
        kept: the machines are kept until a user releases them (`tpux stop --keep`).
        last_request_id: the id of the last user request that has taken effect.
        last_request: that request: action, and its options.
        from_scratch: the next attempt starts from scratch.
        config: the directory of the config below the job's; empty until a resume or a rerun has changed it.
        round: how many times the workers were set up; no step runs twice in one round.
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
    attempt: int = 0
    stage: int = 0
    requested: bool = False
    request_name: str = ""
    allocation: dict[str, JsonValue] | None = None
    saved_state: dict[str, JsonValue] = field(default_factory=dict)
    run: dict[str, JsonValue] = field(default_factory=dict)
    endings: dict[str, dict[str, JsonValue]] = field(default_factory=dict)
    outputs: list[dict[str, JsonValue]] = field(default_factory=list)
    failure: dict[str, JsonValue] | None = None
    restarts: dict[str, int] = field(default_factory=dict)
    preemptions: int = 0
    action: dict[str, JsonValue] | None = None
    release_at: float | None = None
    kept: bool = False
    last_request_id: str = ""
    last_request: dict[str, JsonValue] = field(default_factory=dict)
    from_scratch: bool = True
    config: str = ""
    round: int = 0

    @property
    def ended(self) -> bool:
        """True if the job has succeeded, failed or was stopped; its machines may still be waiting for their release."""
        return self.state in ENDS

    @property
    def done(self) -> bool:
        """True if nothing is left to do: the job has ended, no release is scheduled, and it is not to be deleted."""
        return self.ended and self.release_at is None and self.last_request.get("action") != "delete"

    @property
    def attempt_ready(self) -> bool:
        """True if `attempt-started` is already written for the current round of set-up."""
        return self.run.get("round") == self.round

    @property
    def attempt_open(self) -> bool:
        """True if an attempt has started and its end is not written."""
        return bool(self.run) and not self.run.get("ended")

    @property
    def setup_only(self) -> dict[str, JsonValue] | None:
        """The options of the `tpux setup` that started the job; None if the job is to run its command."""
        return self.last_request if self.last_request.get("action") == "setup" else None

    @cached_property
    def machines(self) -> Allocation | None:
        """The allocation that the job holds."""
        from tpux.plugin.machines import Allocation

        return None if self.allocation is None else Allocation.from_json(self.allocation)

    @property
    def last_failure(self) -> Failure | None:
        """What ended the last attempt, or failed before one."""
        from tpux.plugin.failures import Failure

        return None if self.failure is None else Failure(**self.failure)  # type: ignore[arg-type]

    @property
    def next_action(self) -> Action:
        """What recovering does."""
        from tpux.plugin.failures import Action

        data = {key: value for key, value in (self.action or {}).items() if key != "until"}
        return Action(**data)  # type: ignore[arg-type]

    def to_json(self) -> dict[str, JsonValue]:
        """Return the state as `state.json` holds it."""
        return cast("dict[str, JsonValue]", asdict(self))

    @classmethod
    def from_json(cls, data: Mapping[str, JsonValue]) -> State:
        """Return the state that `to_json` gave. Unknown keys are ignored.

        Raises:
            TypeError: a key is missing.
        """
        return cls(**{key: value for key, value in data.items() if key in _FIELDS})  # type: ignore[arg-type]


_FIELDS = frozenset(field.name for field in fields(State))
