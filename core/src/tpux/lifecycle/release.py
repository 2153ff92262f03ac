"""The end of a job: what it owes, and giving it back. A job is never dropped before that is confirmed."""

from __future__ import annotations

from typing import Literal, cast

from tpux.lifecycle.context import JobContext
from tpux.plugin import spec
from tpux.plugin.machines import Released


def release_at(context: JobContext, end: Literal["succeeded", "failed", "stopped"]) -> float | None:
    """When a job that ends now gives its machines back, in seconds since the epoch; None where it never does."""
    state, tpu, now = context.state, context.job.tpu, context.clock.now()
    asked = state.last_request if end == "stopped" else {}
    if not state.requested:
        return None
    machines = state.machines
    if machines is None or asked.get("release"):
        return now  # a request that is still queued is given up at once, whatever becomes of machines
    if tpu.release == "never":
        return None
    if end == "succeeded" or asked.get("action") == "delete":
        return now
    if asked.get("keep") or not machines.costs:
        return None
    keep = tpu.keep_on_failure if end == "failed" else tpu.keep_on_stop
    return now + max(keep, cast("float", asked.get("keep_for") or 0.0))


def ended(context: JobContext) -> float | None:
    """Give the machines back when it is time; then drop the job, if that is wanted."""
    state = context.state
    if state.release_at is not None:
        if (left := state.release_at - context.clock.now()) > 0:
            return left
        return step_towards_release(context) or 0
    context.forget()
    (context.record.directory / "secrets.json").unlink(missing_ok=True)
    if state.last_request.get("action") == "delete":
        context.store.remove(context.record)
    return None


def step_towards_release(context: JobContext) -> float | None:
    """Ask the allocator for one step; in how many seconds for the next, None once all is given back."""
    answer = context.call_allocator(spec.release)
    if isinstance(answer, Released):
        context.forget()
        context.write("released")
        context.log("tpu.log", "given back")
        return None
    context.waiting(answer.why, None if answer.saved_state is None else dict(answer.saved_state))
    return max(answer.poll_after, 0.05)
