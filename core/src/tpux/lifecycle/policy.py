"""Decide from plain values what follows a failure or a success: whether, when and how to restart or to release.

Rules, budgets and backoff are data, so `tpux rules` prints what runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from tpux.backoff import Backoff
from tpux.model.events import RequestAccepted
from tpux.model.failures import FAILURE_KINDS, Action, FailureKind

PASS = Action()
RESUME = Action("resume")
SOLVE = Action("resume", solve=True)
REAPPLY = Action("resume", reapply=True)
RERUN = Action("rerun")
SOLVE_RERUN = Action("rerun", solve=True)
REAPPLY_RERUN = Action("rerun", reapply=True)

MACHINE_FAILURES: tuple[FailureKind, ...] = ("preempted", "maintenance", "host-lost", "unreachable")
"""The machines are lost: a restart needs new ones."""
TRANSIENT_FAILURES: tuple[FailureKind, ...] = ("infra", "service", "stalled")


def _rule(machines: Action, transient: Action, busy: Action) -> dict[FailureKind, Action]:
    return {
        **dict.fromkeys(FAILURE_KINDS, PASS),
        **dict.fromkeys(MACHINE_FAILURES, machines),
        **dict.fromkeys(TRANSIENT_FAILURES, transient),
        "tpu-busy": busy,
    }


RULES: dict[str, dict[FailureKind, Action]] = {
    "pre": _rule(REAPPLY, RESUME, SOLVE),
    "resume": _rule(PASS, RESUME, SOLVE),
    "reapply": _rule(REAPPLY, REAPPLY, SOLVE),
    "rerun": _rule(REAPPLY_RERUN, RERUN, SOLVE_RERUN),
    "pass": _rule(PASS, PASS, PASS),
}

BUDGETS: dict[FailureKind, int | None] = {
    "preempted": None,  # the cloud's doing, at no cost to the user
    "maintenance": None,
    "host-lost": 20,
    "unreachable": 1,
    "infra": 20,
    "service": 5,
    "stalled": 3,
    "tpu-busy": 5,
    "plugin": 0,
}
"""Restarts in a row by kind: None is unlimited; a kind that is not here has none unless `job.max_restarts` has it."""

REAPPLY_CEILING = 20
"""Restarts in a row that release the machines and request new ones, under the rule of a plugin, of all kinds together:
its answer is final, and new machines may cost money without end."""

PLUGIN_TRIES: dict[str, int | None] = {
    **dict.fromkeys(("provision", "public_keys", "check", "setup", "prepare_command", "run", "on_preempt"), 2),
    **dict.fromkeys(("collect", "classify_failure", "solve"), 3),
    **dict.fromkeys(("connect", "inspect", "release"), None),
}
"""How often a hook that raises an exception or gives a wrong answer is called, by hook; None is without end.

After the last try the job fails with the kind `plugin`; a detector or solver, which concerns every job, is left out."""

BACKOFF: dict[FailureKind, Backoff] = {
    "preempted": Backoff(0, 0),
    "maintenance": Backoff(60, 1800),
    "host-lost": Backoff(1, 300),  # grows, since new machines may fail in the same way, at a price
    "tpu-busy": Backoff(5, 120),
    "service": Backoff(30, 600),
}
"""Before the next restart, by kind."""
OTHER_BACKOFF = Backoff(10, 300)
LOOP_BACKOFF = Backoff(10, 300)
"""Before the next attempt of a looping job whose attempts end at once."""
ENDED_AT_ONCE = 60.0
"""Seconds: a looping job waits before its next attempt when the last one was shorter."""


@dataclass(frozen=True)
class Restarts:
    """What decides about a job's restarts.

    Attributes:
        rule: one of core's rules, or the name of a plugin's.
        spent: restarts in a row so far, by kind of failure (`loop` for those of a looping job).
        limits: `job.max_restarts`.
        loop: `job.loop`: once an attempt was started, every failure is followed by a restart, and budgets do not count.
        has_run: an attempt was started.
        reapplied: how many of the restarts in a row requested new machines.
    """

    rule: str
    spent: Mapping[str, int] = field(default_factory=dict)
    limits: Mapping[FailureKind, int] = field(default_factory=dict)
    loop: bool = False
    has_run: bool = True
    reapplied: int = 0


@dataclass(frozen=True)
class Restart:
    """Restart the job: how, for what, and after how many seconds."""

    action: Action
    kind: FailureKind | Literal["loop"]
    delay: float


@dataclass(frozen=True)
class BudgetSpent:
    """The rule would restart the job, and its budget is spent: the job fails.

    Attributes:
        kind: the kind of failure.
        count: restarts in a row so far.
        ceiling: they are those on new machines (`REAPPLY_CEILING`), of all kinds.
        limited: `job.max_restarts` sets the budget of this kind.
    """

    kind: FailureKind
    count: int
    ceiling: bool = False
    limited: bool = False

    @property
    def why(self) -> str:
        """What is spent, for people."""
        if not self.count:
            return f"no restart is allowed after {self.kind}"
        restarts = "1 restart" if self.count == 1 else f"{self.count} restarts"
        return f"{restarts} in a row " + ("on new machines" if self.ceiling else f"after {self.kind}")

    @property
    def hint(self) -> str:
        """What the user can do about it."""
        return f"{'raise' if self.limited else 'set'} job.max_restarts.{self.kind} to allow more"


LISTENERS_TIMEOUT = 30.0
"""Seconds that the end of a job, and the removal of its record, wait for the listeners to receive its events."""
HEALTHY_AFTER = 3600.0
"""Seconds: an attempt that ran this long resets the job's restarts in a row."""


def default_rule(pricing: str) -> str:
    """Return the rule of a job that names none: machines that can be preempted are requested again."""
    return "pre" if pricing in {"spot", "preemptible"} else "pass"


def may_be_preempted(endings: Iterable[tuple[int | None, str]], *, announced: bool, unreachable: bool) -> bool:
    """Return whether the end of a command may be due to a preemption that the cloud does not report yet.

    Args:
        endings: of each worker the exit code, None if it is unknown, and the signal that its machine sent, "" if none.
        announced: the machines announce preemptions.
        unreachable: a worker does not answer.
    """
    return announced and (unreachable or any(code != 0 or signal for code, signal in endings))


def after_failure(kind: FailureKind, restarts: Restarts, answer: Action | None = None) -> Restart | BudgetSpent | None:
    """Decide what follows a failure.

    The answer of a rule's plugin is final as to what is done. Core adds the backoff, and a budget:
    `job.max_restarts` where it names the kind, else a ceiling for restarts that request new machines.

    Args:
        kind: the kind of failure.
        restarts: the job's rule, budgets and restarts so far.
        answer: what the rule's plugin answered, where the rule is none of core's.

    Returns:
        The restart. Else the job fails, because its budget is spent, or (None) because its rule has no restart.
    """
    by_core = restarts.rule in RULES
    action = rule_action(kind, restarts) if by_core else answer or PASS
    loops = restarts.loop and restarts.has_run
    if action.restart is None and loops:
        action = _first_repair(kind, RESUME)
    if action.restart is None:
        return None
    spent = None if loops else core_budget(kind, restarts) if by_core else plugin_budget(kind, restarts, action)
    return spent or Restart(action, kind, backoff(kind, restarts.spent))


def after_success(restarts: Restarts, lasted: float) -> Restart | None:
    """Decide what follows an attempt that succeeded.

    Args:
        restarts: the budgets of the job.
        lasted: how long the attempt lasted, in seconds.

    Returns:
        The restart of a job with `job.loop`; None if the job has succeeded.
    """
    if not restarts.loop:
        return None
    delay = LOOP_BACKOFF.delay(restarts.spent.get("loop", 0)) if lasted < ENDED_AT_ONCE else 0.0
    return Restart(RESUME, "loop", delay)


def rule_action(kind: FailureKind, restarts: Restarts) -> Action:
    """Return the action of one of core's rules; `job.max_restarts` lets any rule restart a kind."""
    action = RULES[restarts.rule][kind]
    if action.restart is None and restarts.limits.get(kind):
        return _first_repair(kind, RERUN if restarts.rule == "rerun" else RESUME)
    return action


def _first_repair(kind: FailureKind, restart: Action) -> Action:
    """Return a restart for which the rule has none, with what must precede it after this kind of failure."""
    return replace(restart, reapply=kind in MACHINE_FAILURES, solve=kind == "tpu-busy")


def core_budget(kind: FailureKind, restarts: Restarts) -> BudgetSpent | None:
    """Check the budget of one of core's rules.

    Returns:
        The budget that forbids another restart; None if another one is allowed.
    """
    limit = restarts.limits.get(kind, BUDGETS.get(kind, 0))
    count = restarts.spent.get(kind, 0)
    return None if limit is None or count < limit else BudgetSpent(kind, count, limited=kind in restarts.limits)


def plugin_budget(kind: FailureKind, restarts: Restarts, action: Action) -> BudgetSpent | None:
    """Return the budget that forbids another restart under the rule of a plugin; None if none does."""
    if kind in restarts.limits:
        return core_budget(kind, restarts)
    if action.reapply and restarts.reapplied >= REAPPLY_CEILING:
        return BudgetSpent(kind, restarts.reapplied, ceiling=True)
    return None


def backoff(kind: FailureKind, spent: Mapping[str, int]) -> float:
    """Return the seconds before the next restart after this kind of failure."""
    return BACKOFF.get(kind, OTHER_BACKOFF).delay(spent.get(kind, 0))


def default_keep_on_failure(pricing: str) -> float:
    """Return for how many seconds the machines of a failed job are kept that does not say so: on demand costs most."""
    return 600.0 if pricing == "ondemand" else 3600.0


@dataclass(frozen=True)
class Holding:
    """What decides when the machines of a job that has ended are released.

    Attributes:
        requested: a request for machines was sent, or may have been.
        allocated: the job holds machines.
        costs: keeping them costs money.
        release: `tpu.release`.
        keep_on_failure: `tpu.keep_on_failure` or its default, in seconds.
        keep_on_stop: `tpu.keep_on_stop`, in seconds.
        borrowed: tpux did not create the machines.
        releasing: their release has begun.
    """

    requested: bool
    allocated: bool
    costs: bool
    release: Literal["created", "always", "never"]
    keep_on_failure: float
    keep_on_stop: float
    borrowed: bool = False
    releasing: bool = False


def deletes_machines(held: Holding, request: RequestAccepted) -> bool:
    """Return whether a stop or delete deletes the machines at once, and all processes with them.

    Args:
        held: what the job holds, and what its config says about it.
        request: the user's request.
    """
    if not held.allocated or not held.costs or (held.borrowed and held.release != "always"):
        return False
    return request.release or (request.action == "delete" and held.release != "never")


def release_at(
    end: Literal["succeeded", "failed", "stopped"], now: float, held: Holding, request: RequestAccepted | None = None
) -> float | None:
    """Decide when the machines of a job that ends now are released.

    Args:
        end: how the job ends.
        now: seconds since the epoch.
        held: what the job holds, and what its config says about it.
        request: the user's request that ended it; if the job has not failed.

    Returns:
        Seconds since the epoch, or None: never.
    """
    if end == "failed" or request is None:
        request = RequestAccepted(action="stop", number=0)
    if not held.requested:
        return None
    if not held.allocated or held.releasing or request.release:
        return now  # a request that is still queued is withdrawn at once
    if held.release == "never":
        return None
    if request.action == "delete" or (end == "succeeded" and not request.keep):
        return now
    if request.keep or not held.costs:
        return None
    return now + max(held.keep_on_failure if end == "failed" else held.keep_on_stop, request.keep_for)
