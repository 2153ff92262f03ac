"""After a failure: what follows by the rules, and doing it."""

from __future__ import annotations

from dataclasses import asdict
from typing import cast

from tpux.lifecycle import policy
from tpux.lifecycle.context import JobContext
from tpux.lifecycle.modules import solve
from tpux.lifecycle.release import release_at, step_towards_release
from tpux.lifecycle.stop import terminate_processes
from tpux.lifecycle.tasks import TaskGroup
from tpux.plugin import spec
from tpux.plugin.failures import Action, Failure
from tpux.plugin.machines import JsonValue

ENDED_AT_ONCE = 60.0
"""Seconds: a looping job whose attempt was shorter waits before the next."""


def recover_or_fail(context: JobContext, failure: Failure) -> float:
    """Write down what follows this failure, and go there."""
    action = decide(context, failure)
    if action.restart is None:
        context.move("failed", why=failure.evidence, release_at=release_at(context, "failed"))
        return 0
    restart_after(context, action, failure.kind, policy.backoff(failure.kind, context.state.restarts))
    return 0


def restart_after(context: JobContext, action: Action, kind: str, seconds: float) -> None:
    """Write down the next action, and recover once the backoff is over."""
    until = context.clock.now() + seconds
    pause = f", in {seconds:.0f} s" if seconds else ""
    facts = cast("dict[str, JsonValue]", asdict(action))
    context.move("recovering", why=f"{action}{pause}", kind=kind, until=until, **facts)


def decide(context: JobContext, failure: Failure) -> Action:
    """What follows this failure: the rule's action, as long as its budget lasts."""
    job = context.job.job
    rule = job.rule or policy.default_rule(context.job.tpu.pricing)
    if rule in policy.RULES:
        action = policy.from_table(rule, failure.kind, job)
    else:
        action = context.plugins.call_one(rule, spec.on_preempt, job=context.job, failure=failure) or policy.PASS
    if action.restart is None and job.loop and context.state.attempt:
        return Action("resume", reapply=failure.kind in policy.MACHINE_FAILURES)
    return action if policy.within_budget(failure.kind, job, context.state.restarts) or job.loop else policy.PASS


def recovering(context: JobContext) -> float:
    """End what is left of the attempt, repair or give back the machines, wait, and start again."""
    action = context.state.next_action
    gone = action.reapply and (context.state.failure or {}).get("kind") in policy.MACHINE_FAILURES
    if context.state.allocation is not None and not gone and (delay := terminate_processes(context)) is not None:
        return delay
    if action.solve and (delay := _solve(context)) is not None:
        return delay
    if (left := cast("float", (context.state.action or {}).get("until", 0)) - context.clock.now()) > 0:
        return left
    if action.reapply or context.state.allocation is None:
        if context.state.requested and (delay := step_towards_release(context)) is not None:
            return delay
        context.forget()
        context.move("provisioning", why=f"asking {context.plan.allocator} for machines again")
    else:
        context.forget()
        context.move("setting-up", why="preparing the workers again")
    return 0


class RepairTasks(TaskGroup[None]):
    """The solvers' steps on all workers, before the next attempt."""

    def __init__(self, context: JobContext, failure: Failure) -> None:
        super().__init__(context, {w.index: solve(context, w, failure) for w in context.allocation.workers})


def _solve(context: JobContext) -> float | None:
    failure = context.state.last_failure
    if failure is None:
        return None
    return context.recall(RepairTasks, lambda: RepairTasks(context, failure)).turn()
