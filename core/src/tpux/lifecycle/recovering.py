"""After a failure: what follows by the rules, and doing it."""

from __future__ import annotations

from dataclasses import asdict
from typing import cast

from tpux import hookspecs, rules
from tpux.failures import Action, Failure
from tpux.lifecycle.ending import end_leftovers
from tpux.lifecycle.modules import solve
from tpux.lifecycle.releasing import release_at, step_towards_release
from tpux.lifecycle.stories import Stories
from tpux.lifecycle.work import Work
from tpux.machines import JsonValue

ENDED_AT_ONCE = 60.0
"""Seconds: a looping job whose attempt was shorter waits before the next."""


def recover_or_fail(work: Work, failure: Failure) -> float:
    """Write down what follows this failure, and go there."""
    action = decide(work, failure)
    if action.restart is None:
        work.move("failed", why=failure.evidence, release_at=release_at(work, "failed"))
        return 0
    restart_after(work, action, failure.kind, rules.backoff(failure.kind, work.state.restarts))
    return 0


def restart_after(work: Work, action: Action, kind: str, seconds: float) -> None:
    """Write down the next action, and recover once the backoff is over."""
    until = work.clock.now() + seconds
    pause = f", in {seconds:.0f} s" if seconds else ""
    facts = cast("dict[str, JsonValue]", asdict(action))
    work.move("recovering", why=f"{action}{pause}", kind=kind, until=until, **facts)


def decide(work: Work, failure: Failure) -> Action:
    """What follows this failure: the rule's action, as long as its budget lasts."""
    job = work.job.job
    rule = job.rule or rules.default_rule(work.job.tpu.pricing)
    if rule in rules.RULES:
        action = rules.from_table(rule, failure.kind, job)
    else:
        action = work.plugins.ask(rule, hookspecs.on_preempt, job=work.job, failure=failure) or rules.PASS
    if action.restart is None and job.loop and work.state.attempt:
        return Action("resume", reapply=failure.kind in rules.MACHINES_GONE)
    return action if rules.affordable(failure.kind, job, work.state.restarts) or job.loop else rules.PASS


def recovering(work: Work) -> float:
    """End what is left of the attempt, repair or give back the machines, wait, and start again."""
    action = work.state.next_action
    gone = action.reapply and (work.state.failure or {}).get("kind") in rules.MACHINES_GONE
    if work.state.allocation is not None and not gone and (delay := end_leftovers(work)) is not None:
        return delay
    if action.solve and (delay := _solve(work)) is not None:
        return delay
    if (left := cast("float", (work.state.action or {}).get("until", 0)) - work.clock.now()) > 0:
        return left
    if action.reapply or work.state.allocation is None:
        if work.state.requested and (delay := step_towards_release(work)) is not None:
            return delay
        work.forget()
        work.move("provisioning", why=f"asking {work.plan.allocator} for machines again")
    else:
        work.forget()
        work.move("setting-up", why="preparing the workers again")
    return 0


class Solving(Stories[None]):
    """The solvers' steps on all workers, before the next attempt."""

    def __init__(self, work: Work, failure: Failure) -> None:
        super().__init__(work, {w.index: solve(work, w, failure) for w in work.allocation.workers})


def _solve(work: Work) -> float | None:
    failure = work.state.last_failure
    if failure is None:
        return None
    return work.recall(Solving, lambda: Solving(work, failure)).turn()
