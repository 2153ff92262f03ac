"""The state of a job: a fold of its events, and the one table of what may follow what."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal, cast

from tpux.errors import TpuxError
from tpux.store.events import Event

if TYPE_CHECKING:
    from tpux.plugin.failures import Action, Failure
    from tpux.plugin.machines import Allocation, JsonValue

JobState = Literal[
    "pending",
    "provisioning",
    "setting-up",
    "running",
    "recovering",
    "stopping",
    "stopped",
    "succeeded",
    "failed",
]

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

HEALTHY_AFTER = 3600.0
"""Seconds: an attempt that lasted this long gives its job all its restarts back."""


@dataclass(frozen=True)
class State:
    """The job now.

    Attributes:
        why: what is waited for, as a user reads it; since `since` (seconds since the epoch).
        requested: a request was, or may have been, sent to the allocator and is not yet given back.
        request: how many requests the job has made.
        memo: what the allocator asked to be remembered.
        run: the attempt's facts: workers, output_dir, previous_output_dir, resume, running, ended, round.
        endings: how the attempt ended, by worker: code, at, reason.
        outputs: the output directory of each attempt since the last start from scratch, and how it ended.
        restarts: restarts in a row, by kind of failure.
        action: what recovering does: restart, reapply, solve, until (seconds since the epoch).
        release_at: when the machines are given back (seconds since the epoch), None where nothing is owed.
        kept: the machines are kept for good (`tpux stop --keep`).
        wanted: the serial of the last wish that was heeded.
        fresh: whether the next attempt starts from scratch.
        round: how many times its workers were prepared; the steps of one round are never run twice.
        asked: that last wish: want, and its options.
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
    request: int = 0
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
    wanted: str = ""
    fresh: bool = True
    round: int = 0
    asked: dict[str, JsonValue] = field(default_factory=dict)

    @property
    def ended(self) -> bool:
        """Whether the job has ended."""
        return self.state in ENDS

    @property
    def done(self) -> bool:
        """Whether nothing is left to do: it has ended, owes no release, and is not to be forgotten."""
        return self.ended and self.release_at is None and self.asked.get("want") != "delete"

    @property
    def attempt_ready(self) -> bool:
        """Whether the attempt that this round of preparations was for is written down already."""
        return self.run.get("round") == self.round

    @property
    def attempt_open(self) -> bool:
        """Whether an attempt was written down whose end was not."""
        return bool(self.run) and not self.run.get("ended")

    @property
    def only_setup(self) -> dict[str, JsonValue] | None:
        """The options of a `tpux setup` that the job was started again for; None where it is to run."""
        return self.asked if self.asked.get("want") == "setup" else None

    @cached_property
    def machines(self) -> Allocation | None:
        """The allocation it holds."""
        from tpux.plugin.machines import Allocation

        return None if self.allocation is None else Allocation.from_json(self.allocation)

    @property
    def last_failure(self) -> Failure | None:
        """What ended the last attempt."""
        from tpux.plugin.failures import Failure

        return None if self.failure is None else Failure(**self.failure)  # type: ignore[arg-type]

    @property
    def next_action(self) -> Action:
        """What recovering does."""
        from tpux.plugin.failures import Action

        data = {key: value for key, value in (self.action or {}).items() if key != "until"}
        return Action(**data)  # type: ignore[arg-type]

    def to_json(self) -> dict[str, JsonValue]:
        """The same as JSON knows it."""
        return cast("dict[str, JsonValue]", asdict(self))

    @classmethod
    def from_json(cls, data: Mapping[str, JsonValue]) -> State:
        """The state that `to_json` wrote; keys of a newer tpux are left out."""
        return cls(**{key: value for key, value in data.items() if key in _FIELDS})  # type: ignore[arg-type]


_FIELDS = frozenset(field.name for field in fields(State))


def apply_event(state: State | None, event: Event) -> State:
    """The state after `event`.

    Raises:
        TpuxError: the event cannot follow on this state, or lacks what its type needs.
    """
    try:
        return _apply(state, event, cast("float", event["at"]))
    except (KeyError, TypeError, ValueError) as error:
        job = f"job {state.id}" if state else ""
        raise TpuxError(f"the event {dict(event)} is not whole: {error!r}", where=job) from error


def _apply(state: State | None, event: Event, at: float) -> State:
    if state is None:
        if event["type"] != "created":
            raise TpuxError(f"the first event is {event['type']!r}, not 'created'")
        return _created(event, at)
    change = _HANDLERS.get(cast("str", event["type"]))
    return replace(change(state, event, at) if change else state, updated_at=at)


def _created(event: Event, at: float) -> State:
    facts = {key: value for key, value in event.items() if key not in {"type", "at"}}
    return State(created_at=at, updated_at=at, since=at, **facts)  # type: ignore[arg-type]


def _moved(state: State, event: Event, at: float) -> State:
    to = cast("JobState", event["to"])
    if to not in TRANSITIONS[state.state]:
        raise TpuxError(f"a job that is {state.state} cannot become {to}", where=f"job {state.id}")
    state = replace(state, state=to, since=at, why=cast("str", event.get("why") or ""))
    if to == "pending":
        return replace(state, failure=None, action=None, restarts={}, release_at=None, kept=False)
    if to == "setting-up":
        return replace(state, round=state.round + 1)
    if to == "recovering":
        return _recovering(state, event)
    if to in ENDS:
        return replace(state, release_at=cast("float | None", event.get("release_at")))
    return state


def _recovering(state: State, event: Event) -> State:
    """The action is part of the move: between two events a kill -9 would cost one restart of the budget."""
    action = {key: event[key] for key in ("restart", "reapply", "solve", "until")}
    kind = cast("str", event["kind"])
    restarts = {**state.restarts, kind: state.restarts.get(kind, 0) + 1}
    return replace(state, action=action, restarts=restarts, fresh=action["restart"] == "rerun")


def _waiting(state: State, event: Event, at: float) -> State:  # noqa: ARG001
    saved_state = event.get("saved_state")
    state = replace(state, why=cast("str", event["why"]))
    return state if saved_state is None else replace(state, saved_state=cast("dict[str, JsonValue]", saved_state))


def _requested(state: State, event: Event, at: float) -> State:  # noqa: ARG001
    return replace(state, requested=True, request=state.request + 1, saved_state={}, release_at=None)


def _allocated(state: State, event: Event, at: float) -> State:
    allocation = cast("dict[str, JsonValue]", event["allocation"])
    workers = len(cast("list[JsonValue]", allocation["workers"]))
    zone = cast("str", allocation.get("zone")) or state.zone
    state = replace(state, allocation=allocation, workers=workers, zone=zone)
    return _waiting(state, {"why": state.why, **event}, at)


def _released(state: State, event: Event, at: float) -> State:  # noqa: ARG001
    why = "" if state.ended else state.why  # a release that is through is no longer waited for
    return replace(state, requested=False, allocation=None, saved_state={}, release_at=None, why=why)


def _keep(state: State, event: Event, at: float) -> State:  # noqa: ARG001
    until = cast("float | None", event["until"])
    return replace(state, release_at=until, kept=until is None)


def _attempt_started(state: State, event: Event, at: float) -> State:
    run = {key: value for key, value in event.items() if key not in {"type", "at", "attempt", "stage"}}
    return replace(
        state,
        attempt=cast("int", event["attempt"]),
        stage=cast("int", event["stage"]),
        run={**run, "started_at": at, "running": False, "ended": False, "round": state.round},
        endings={},
        outputs=[] if state.fresh else state.outputs,
        failure=None,
        fresh=False,
    )


def _attempt_running(state: State, event: Event, at: float) -> State:  # noqa: ARG001
    return replace(state, run={**state.run, "running": True})


def _worker_ended(state: State, event: Event, at: float) -> State:
    ending: dict[str, JsonValue] = {"code": event["code"], "reason": event.get("reason"), "at": at}
    return replace(state, endings={**state.endings, str(event["worker"]): ending})


def _attempt_ended(state: State, event: Event, at: float) -> State:
    failure = cast("dict[str, JsonValue] | None", event["failure"])
    outputs = state.outputs
    if state.run and event.get("attempt") == state.attempt:
        outputs = [*outputs, {"attempt": state.attempt, "dir": state.run.get("output_dir"), "failure": failure}]
    lasted = at - cast("float", state.run.get("started_at", at))
    restarts = {} if lasted >= HEALTHY_AFTER else state.restarts
    preempted = failure is not None and failure["kind"] == "preempted"
    return replace(
        state,
        failure=failure,
        outputs=outputs,
        restarts=restarts,
        preemptions=state.preemptions + preempted,
        run={**state.run, "running": False, "ended": True, "lasted": lasted},
    )


def _failure(state: State, event: Event, at: float) -> State:  # noqa: ARG001
    return replace(state, failure={key: value for key, value in event.items() if key not in {"type", "at"}})


def _hurried(state: State, event: Event, at: float) -> State:  # noqa: ARG001
    return replace(state, action={**(state.action or {}), "until": 0})


def _wanted(state: State, event: Event, at: float) -> State:  # noqa: ARG001
    asked = {key: value for key, value in event.items() if key not in {"type", "at", "serial"}}
    if event["want"] == "setup" and state.state != "pending":
        asked = state.asked  # it was started again in the meantime, and goes on as it was asked to
    state = replace(state, wanted=cast("str", event["serial"]), asked=asked)
    return replace(state, fresh=True) if event["want"] == "rerun" else state


_HANDLERS: dict[str, Callable[[State, Event, float], State]] = {
    "moved": _moved,
    "waiting": _waiting,
    "requested": _requested,
    "allocated": _allocated,
    "released": _released,
    "keep": _keep,
    "attempt-started": _attempt_started,
    "attempt-running": _attempt_running,
    "worker-ended": _worker_ended,
    "attempt-ended": _attempt_ended,
    "failure": _failure,
    "hurried": _hurried,
    "wanted": _wanted,
}
