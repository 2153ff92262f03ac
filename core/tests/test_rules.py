"""The rules as the design has them: which action follows which failure, how often, and after what pause."""

from __future__ import annotations

import pytest

from tpux.lifecycle import policy
from tpux.plugin.failures import FAILURE_KINDS, FailureKind
from tpux.plugin.sections import JobSection

GONE = ("preempted", "maintenance", "host-lost")
BROKEN = ("infra", "stalled")
DESIGN = {
    "pre": ("reapply, then resume", "resume", "solve, resume"),
    "resume": ("pass", "resume", "solve, resume"),
    "reapply": ("reapply, then resume", "reapply, then resume", "solve, resume"),
    "rerun": ("reapply, then rerun", "rerun", "solve, rerun"),
    "pass": ("pass", "pass", "pass"),
}


@pytest.mark.parametrize("rule", DESIGN)
@pytest.mark.parametrize("kind", FAILURE_KINDS)
def test_the_table_is_the_design_s(rule: str, kind: FailureKind) -> None:
    gone, broken, busy = DESIGN[rule]
    expected = gone if kind in GONE else broken if kind in BROKEN else busy if kind == "tpu-busy" else "pass"
    assert str(policy.from_table(rule, kind, JobSection())) == expected


def test_the_default_goes_by_the_pricing() -> None:
    assert [policy.default_rule(p) for p in ("spot", "preemptible", "ondemand")] == ["pre", "pre", "pass"]


def test_a_preemption_costs_the_user_nothing() -> None:
    for kind in ("preempted", "maintenance"):
        assert policy.within_budget(kind, JobSection(), {kind: 10_000})  # type: ignore[arg-type]


@pytest.mark.parametrize("rule", DESIGN)
def test_out_of_memory_is_never_tried_again(rule: str) -> None:
    job = JobSection(max_restarts={"out-of-memory": 5})
    assert policy.from_table(rule, "out-of-memory", job).restart is None
    assert not policy.within_budget("out-of-memory", job, {})


@pytest.mark.parametrize(("rule", "expected"), [("pre", "resume"), ("pass", "resume"), ("rerun", "rerun")])
def test_a_program_s_error_is_tried_again_only_when_asked(rule: str, expected: str) -> None:
    assert not policy.within_budget("program", JobSection(), {})
    job = JobSection(max_restarts={"program": 2})
    assert str(policy.from_table(rule, "program", job)) == expected
    assert [policy.within_budget("program", job, {"program": spent}) for spent in range(4)] == [
        True,
        True,
        False,
        False,
    ]


def test_a_budget_of_none_forbids() -> None:
    assert not policy.within_budget("preempted", JobSection(max_restarts={"preempted": 0}), {})


@pytest.mark.parametrize(
    ("kind", "pauses"),
    [
        ("preempted", [0, 0, 0]),
        ("maintenance", [60, 120, 240]),
        ("host-lost", [0, 0, 0]),
        ("tpu-busy", [5, 10, 20]),
        ("infra", [10, 20, 40]),
    ],
)
def test_pauses_double(kind: FailureKind, pauses: list[float]) -> None:
    assert [policy.backoff(kind, {kind: spent}) for spent in range(3)] == pauses


@pytest.mark.parametrize("kind", FAILURE_KINDS)
def test_pauses_have_an_end(kind: FailureKind) -> None:
    assert policy.backoff(kind, {kind: 10_000}) == policy.backoff(kind, {kind: 16}) <= 1800
