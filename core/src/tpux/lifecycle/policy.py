"""Which action follows which failure: data, so that `tpux rules` prints what runs."""

from __future__ import annotations

from collections.abc import Mapping

from tpux.plugin.failures import FAILURE_KINDS, Action, FailureKind
from tpux.plugin.sections import JobSection

PASS = Action()
RESUME = Action("resume")
SOLVE = Action("resume", solve=True)
REAPPLY = Action("resume", reapply=True)
RERUN = Action("rerun")
SOLVE_RERUN = Action("rerun", solve=True)
REAPPLY_RERUN = Action("rerun", reapply=True)

MACHINE_FAILURES: tuple[FailureKind, ...] = ("preempted", "maintenance", "host-lost")
TRANSIENT_FAILURES: tuple[FailureKind, ...] = ("infra", "stalled")


def _rule(gone: Action, broken: Action, busy: Action) -> dict[FailureKind, Action]:
    table = dict.fromkeys(FAILURE_KINDS, PASS)
    return (
        table | dict.fromkeys(MACHINE_FAILURES, gone) | dict.fromkeys(TRANSIENT_FAILURES, broken) | {"tpu-busy": busy}
    )


RULES: dict[str, dict[FailureKind, Action]] = {
    "pre": _rule(REAPPLY, RESUME, SOLVE),
    "resume": _rule(PASS, RESUME, SOLVE),
    "reapply": _rule(REAPPLY, REAPPLY, SOLVE),
    "rerun": _rule(REAPPLY_RERUN, RERUN, SOLVE_RERUN),
    "pass": _rule(PASS, PASS, PASS),
}

BUDGETS: dict[FailureKind, int | None] = {
    "preempted": None,  # the cloud's doing: it costs the user nothing
    "maintenance": None,
    "host-lost": 20,
    "infra": 20,
    "stalled": 3,
    "tpu-busy": 5,
}
"""Restarts in a row by kind: None has no end, a kind that is not here has none unless the config gives some."""

HEALTHY_AFTER = 3600.0
"""Seconds: an attempt that ran this long gives its job all its restarts back."""

BACKOFF: dict[FailureKind, tuple[float, float]] = {
    "preempted": (0, 0),
    "maintenance": (60, 1800),
    "host-lost": (0, 60),
    "tpu-busy": (5, 120),
}
"""Seconds before the first restart and at the most; doubled from one restart to the next."""
OTHER_BACKOFF = (10.0, 300.0)


def default_rule(pricing: str) -> str:
    """The rule of a job that names none: machines that can be taken away are asked for again."""
    return "pre" if pricing in {"spot", "preemptible"} else "pass"


def from_table(rule: str, kind: FailureKind, job: JobSection) -> Action:
    """What core's own rule says; a kind that the config gives restarts to is restarted by any rule."""
    action = RULES[rule][kind]
    if action.restart is None and job.max_restarts.get(kind) and kind != "out-of-memory":
        restart = RERUN if rule == "rerun" else RESUME
        return Action(restart.restart, reapply=kind in MACHINE_FAILURES)
    return action


def budget(kind: FailureKind, job: JobSection) -> int | None:
    """How many restarts in a row this kind of failure may cost; None has no end."""
    if kind == "out-of-memory":
        return 0  # unchanged, it would only happen again
    return job.max_restarts.get(kind, BUDGETS.get(kind, 0))


def within_budget(kind: FailureKind, job: JobSection, restarts: Mapping[str, int]) -> bool:
    """Whether one more restart is within the budget."""
    limit = budget(kind, job)
    return limit is None or restarts.get(kind, 0) < limit


def backoff(kind: FailureKind, restarts: Mapping[str, int]) -> float:
    """Seconds to wait before the next restart after this kind of failure."""
    first, most = BACKOFF.get(kind, OTHER_BACKOFF)
    return float(min(first * 2.0 ** min(restarts.get(kind, 0), 16), most))
