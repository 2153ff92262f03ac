"""What follows every kind of failure under every rule: the action, the budget, the backoff, and the release."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tpux.lifecycle import policy
from tpux.lifecycle.policy import BudgetSpent, Holding, Restart, Restarts
from tpux.model.events import RequestAccepted
from tpux.model.failures import FAILURE_KINDS, Action, FailureKind

PASS, RESUME, SOLVE, REAPPLY = "pass", "resume", "solve, resume", "reapply, then resume"
RERUN, SOLVE_RERUN, REAPPLY_RERUN = "rerun", "solve, rerun", "reapply, then rerun"

# kind: the action under each rule, the budget (None is unlimited), and the first delays.
RULES = ("pre", "resume", "reapply", "rerun", "pass")
LOST = (REAPPLY, PASS, REAPPLY, REAPPLY_RERUN, PASS)
TRANSIENT = (RESUME, RESUME, REAPPLY, RERUN, PASS)
NEVER = (PASS, PASS, PASS, PASS, PASS)
TABLE: dict[FailureKind, tuple[tuple[str, ...], int | None, list[float]]] = {
    "preempted": (LOST, None, [0, 0, 0]),
    "maintenance": (LOST, None, [60, 120, 240]),
    "host-lost": (LOST, 20, [1, 2, 4]),
    "unreachable": (LOST, 1, [10]),
    "infra": (TRANSIENT, 20, [10, 20, 40]),
    "tpu-busy": ((SOLVE, SOLVE, SOLVE, SOLVE_RERUN, PASS), 5, [5, 10, 20]),
    "out-of-memory": (NEVER, 0, []),
    "stockout": (NEVER, 0, []),
    "quota": (NEVER, 0, []),
    "auth": (NEVER, 0, []),
    "config": (NEVER, 0, []),
    "setup": (NEVER, 0, []),
    "stalled": (TRANSIENT, 3, [10, 20, 40]),
    "service": (TRANSIENT, 5, [30, 60, 120, 240, 480]),
    "incomplete": (NEVER, 0, []),
    "plugin": (NEVER, 0, []),
    "program": (NEVER, 0, []),
    "unknown": (NEVER, 0, []),
}
CASES = [(rule, kind) for rule in RULES for kind in FAILURE_KINDS]


def after(kind: FailureKind, restarts: Restarts, answer: Action | None = None) -> tuple[str, float] | None:
    """Return the action and the delay, and check that the restart is counted for its kind."""
    following = policy.after_failure(kind, restarts, answer)
    assert following is None or following.kind == kind
    return (str(following.action), following.delay) if isinstance(following, Restart) else None


def report(kind: FailureKind, restarts: Restarts, answer: Action | None = None) -> tuple[str, str]:
    """Return what is reported about a budget that is spent."""
    following = policy.after_failure(kind, restarts, answer)
    assert isinstance(following, BudgetSpent)
    return following.why, following.hint


@pytest.mark.parametrize(("rule", "kind"), CASES)
def test_every_rule_with_every_kind(rule: str, kind: FailureKind) -> None:
    actions, budget, delays = TABLE[kind]
    action = actions[RULES.index(rule)]
    assert str(policy.RULES[rule][kind]) == action
    for spent, delay in enumerate(delays):
        assert after(kind, Restarts(rule, {kind: spent})) == (None if action == PASS else (action, delay))
    assert policy.BUDGETS.get(kind, 0) == budget
    last = 10_000 if budget is None else budget - 1
    assert bool(after(kind, Restarts(rule, {kind: last}))) == (action != PASS)
    if budget is not None:
        assert after(kind, Restarts(rule, {kind: budget})) is None


@pytest.mark.parametrize(("rule", "kind"), CASES)
def test_max_restarts_overrides_the_budget_and_restarts_under_any_rule(rule: str, kind: FailureKind) -> None:
    limits: dict[FailureKind, int] = {kind: 2}
    action = TABLE[kind][0][RULES.index(rule)]
    if action == PASS:
        first = "reapply, then " if kind in policy.MACHINE_FAILURES else "solve, " if kind == "tpu-busy" else ""
        action = first + ("rerun" if rule == "rerun" else RESUME)
    answers = [after(kind, Restarts(rule, {kind: spent}, limits)) for spent in range(4)]
    assert [answer and answer[0] for answer in answers] == [action, action, None, None]
    assert after(kind, Restarts(rule, limits={kind: 0})) is None


def test_the_default_rule_depends_on_the_pricing() -> None:
    assert [policy.default_rule(p) for p in ("spot", "preemptible", "ondemand")] == ["pre", "pre", "pass"]


@pytest.mark.parametrize("kind", FAILURE_KINDS)
@pytest.mark.parametrize("spent", [16, 17, 1024, 10**9])
def test_the_backoff_is_capped_and_never_overflows(kind: FailureKind, spent: int) -> None:
    longest = {"preempted": 0, "maintenance": 1800, "tpu-busy": 120, "service": 600}.get(kind, 300)
    assert policy.backoff(kind, {kind: spent}) == longest


ANSWERS = (
    Action("resume"),
    Action("resume", solve=True),
    Action("resume", reapply=True),
    Action("rerun", reapply=True),
)


@pytest.mark.parametrize("kind", FAILURE_KINDS)
@pytest.mark.parametrize("answer", ANSWERS, ids=str)
def test_the_answer_of_a_rule_plugin_is_final_and_core_adds_backoff_and_ceiling(
    kind: FailureKind, answer: Action
) -> None:
    for spent in (0, 1, 1024):
        expected = (str(answer), policy.backoff(kind, {kind: spent}))
        assert after(kind, Restarts("patient", {kind: spent}, reapplied=19), answer) == expected
    at_ceiling = Restarts("patient", {kind: 3}, reapplied=20)
    assert bool(after(kind, at_ceiling, answer)) == (not answer.reapply)
    if answer.reapply:
        hint = f"set job.max_restarts.{kind} to allow more"
        assert report(kind, at_ceiling, answer) == ("20 restarts in a row on new machines", hint)
    # job.max_restarts takes the place of the ceiling, and limits restarts on the same machines too.
    limits: dict[FailureKind, int] = {kind: 30}
    assert after(kind, Restarts("patient", {kind: 29}, limits, reapplied=29), answer)
    assert after(kind, Restarts("patient", {kind: 30}, limits), answer) is None
    other: FailureKind = "setup" if kind != "setup" else "quota"
    assert bool(after(kind, Restarts("patient", {}, {other: 30}, reapplied=20), answer)) == (not answer.reapply)


@pytest.mark.parametrize("kind", FAILURE_KINDS)
@pytest.mark.parametrize("answer", [None, Action()])
def test_a_rule_plugin_that_does_not_restart_is_final_too(kind: FailureKind, answer: Action | None) -> None:
    assert policy.after_failure(kind, Restarts("patient", limits={kind: 2}), answer) is None


@pytest.mark.parametrize(
    ("restarts", "why", "hint"),
    [
        (Restarts("pre", {"infra": 20}), "20 restarts in a row after infra", "set job.max_restarts.infra"),
        (Restarts("pre", {"infra": 1}, limits={"infra": 1}), "1 restart in a row after", "raise job.max_restarts."),
        (Restarts("pre", limits={"infra": 0}), "no restart is allowed after infra", "raise job.max_restarts.infra"),
    ],
)
def test_a_spent_budget_is_reported_with_the_key_that_raises_it(restarts: Restarts, why: str, hint: str) -> None:
    assert [text.startswith(start) for text, start in zip(report("infra", restarts), (why, hint), strict=True)] == [
        True,
        True,
    ]


@pytest.mark.parametrize("kind", FAILURE_KINDS)
def test_a_looping_job_restarts_after_any_failure_once_it_has_run(kind: FailureKind) -> None:
    answer = after(kind, Restarts("pass", {kind: 100}, loop=True))
    assert answer is not None
    assert answer[0] == (REAPPLY if kind in policy.MACHINE_FAILURES else SOLVE if kind == "tpu-busy" else RESUME)
    assert answer[1] >= (0 if kind == "preempted" else 120), "its delays grow"
    assert after(kind, Restarts("pass", loop=True, has_run=False)) is None
    limited: dict[FailureKind, int] = {kind: 2}
    allowed = [after(kind, Restarts("pre", {kind: spent}, limited, loop=True, has_run=False)) for spent in (1, 2)]
    assert [bool(one) for one in allowed] == [True, False], "budgets count until it has run"


@pytest.mark.parametrize(
    ("loops", "lasted", "delay"),
    [(0, 1.0, 10), (1, 1.0, 20), (5, 59.0, 300), (10**9, 1.0, 300), (0, 60.0, 0), (9, 3600.0, 0)],
)
def test_a_looping_job_resumes_after_success(loops: int, lasted: float, delay: float) -> None:
    restarts = Restarts("pass", {"loop": loops}, loop=True)
    assert policy.after_success(restarts, lasted) == Restart(Action("resume"), "loop", delay)
    assert policy.after_success(Restarts("pre"), lasted) is None


NOW, FAILED, STOPPED = 1000.0, 1060.0, 1007.0
"""The time, and when machines are released after `keep_on_failure` and after `keep_on_stop`."""
DELETE = RequestAccepted(action="delete", number=1)
STOP = RequestAccepted(action="stop", number=1)
RELEASE, KEEP = replace(STOP, release=True), replace(STOP, keep=True)


def holding(release: str = "created", *, requested: bool = True, allocated: bool = True, costs: bool = True) -> Holding:
    return Holding(requested, allocated, costs, release, keep_on_failure=60, keep_on_stop=7)  # type: ignore[arg-type]


@pytest.mark.parametrize("costs", [True, False])
@pytest.mark.parametrize("release", ["created", "always", "never"])
@pytest.mark.parametrize(
    ("end", "request_", "expected"),
    [
        ("succeeded", None, NOW),
        ("succeeded", KEEP, None),
        ("failed", None, FAILED),
        ("failed", DELETE, FAILED),
        ("failed", RELEASE, FAILED),
        ("failed", KEEP, FAILED),
        ("stopped", None, STOPPED),
        ("stopped", DELETE, NOW),
        ("stopped", RELEASE, NOW),
        ("stopped", KEEP, None),
        ("stopped", replace(STOP, keep_for=3), STOPPED),
        ("stopped", replace(STOP, keep_for=100), 1100.0),
        ("stopped", replace(STOP, release=True, keep_for=100), NOW),
        ("stopped", replace(DELETE, keep=True), NOW),
    ],
)
def test_release_times(end, request_, expected, release, costs) -> None:  # type: ignore[no-untyped-def]
    if release == "never":
        expected = NOW if end == "stopped" and request_ and request_.release else None
    elif not costs and expected != NOW:
        expected = None
    assert policy.release_at(end, NOW, holding(release, costs=costs), request_) == expected
    # A request that is still queued is withdrawn at once, and where nothing was requested nothing is released.
    assert policy.release_at(end, NOW, holding(release, allocated=False, costs=costs), request_) == NOW
    assert policy.release_at(end, NOW, holding(release, requested=False, allocated=False), request_) is None


@pytest.mark.parametrize(
    ("endings", "unreachable", "suspected"),
    [
        ([(0, ""), (0, "")], False, False),
        ([(0, ""), (0, "")], True, True),
        ([(0, ""), (0, "TERM")], False, True),
        ([(0, ""), (143, "")], False, True),
        ([(0, ""), (1, "")], False, True),
        ([(0, ""), (None, "")], False, True),
    ],
)
def test_an_end_that_may_be_due_to_a_preemption(
    endings: list[tuple[int | None, str]], unreachable: bool, suspected: bool
) -> None:
    assert policy.may_be_preempted(endings, announced=True, unreachable=unreachable) is suspected
    assert not policy.may_be_preempted(endings, announced=False, unreachable=unreachable)
