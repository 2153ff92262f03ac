"""What follows when a candidate cannot be had: fail, delete and try the next one, or back off and start over."""

from __future__ import annotations

from dataclasses import replace

from tpux import Denied, Waiting
from tpux_gcp.errors import InvalidConfigError, Problem
from tpux_gcp.labels import owner
from tpux_gcp.request import Answer, RequestContext, deny
from tpux_gcp.resource import TpuResource

# Seconds: the backoff after all candidates were tried once, doubled after each further round, and its maximum.
BACKOFF, MAX_BACKOFF = 30.0, 300.0


def on_create_failed(context: RequestContext, problem: Problem, *, gone: bool = False) -> Answer:
    """Fail the request for quota, auth and config errors; for a stockout delete and try the next candidate.

    Args:
        context: the step.
        problem: why the creation failed.
        gone: the API has just confirmed that nothing was created.
    """
    if problem.kind in {"quota", "auth", "config"}:
        return deny(problem)
    outcome = "no capacity" if "capacity" in problem.message else problem.message
    context = context.with_saved(context.saved.begin_delete(outcome, "next"))
    return next_candidate(context) if gone else context.wait(f"{context.saved.candidate}: {problem.message}", 0)


def abandon(context: RequestContext, why: str) -> Waiting:
    """Delete what was created for the current candidate, then try the next one."""
    return context.with_saved(context.saved.begin_delete(why, "next")).wait(f"{context.saved.candidate}: {why}", 0)


def retry(context: RequestContext, why: str) -> Waiting:
    """Delete what was created for the current candidate, then request it again."""
    return context.with_saved(context.saved.begin_delete(why, "retry")).wait(f"{context.saved.candidate}: {why}", 0)


def replace_lost(context: RequestContext, resource: TpuResource) -> Answer:
    """Delete a lost TPU and request it again, unless tpux did not create it."""
    stale = owner(resource.labels, context.request) == "stale"
    if stale or not context.saved.borrowed or context.tpu.release == "always":
        return retry(context, resource.state)
    hint = f"tpux tpu delete {context.name} --zone {context.saved.zone}, or set tpu.release: always"
    return Denied(InvalidConfigError(f"{resource.state}, and tpux did not create it", hint).failure)


def next_candidate(context: RequestContext) -> Waiting:
    """Go on after a deletion: request the next candidate or the same one, or back off first."""
    saved = context.saved
    if saved.after_delete == "retry":
        pause = 0.0 if saved.retries == 0 else _backoff(saved.retries - 1)
        context = context.restart_candidate().update(retries=saved.retries + 1)
    elif saved.candidate_index + 1 < len(context.candidates):
        index = saved.candidate_index + 1
        saved = saved.begin_candidate(index, context.candidates[index], context.now)
        return context.with_saved(saved).wait_with_history(f"requesting {saved.candidate}", 0)
    else:
        pause = _backoff(saved.rounds)
        saved = saved.begin_candidate(0, context.candidates[0], context.now)
        context = context.with_saved(replace(saved, rounds=saved.rounds + 1))
    candidate = context.saved.candidate
    if not pause:
        return context.wait_with_history(f"requesting {candidate} again", 0)
    context = context.update(phase="backing-off", backoff_until=context.now + pause)
    return context.wait_with_history(f"requesting {candidate} again in {pause:.0f} s", pause)


def _backoff(times: int) -> float:
    return min(BACKOFF * 2.0 ** min(times, 8), MAX_BACKOFF)
