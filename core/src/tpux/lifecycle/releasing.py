"""The end of a job: what it owes, and giving it back. A job is never dropped before that is confirmed."""

from __future__ import annotations

from typing import Literal, cast

from tpux import hookspecs
from tpux.lifecycle.work import Work
from tpux.machines import Released


def release_at(work: Work, end: Literal["succeeded", "failed", "stopped"]) -> float | None:
    """When a job that ends now gives its machines back, in seconds since the epoch; None where it never does."""
    state, tpu, now = work.state, work.job.tpu, work.clock.now()
    asked = state.asked if end == "stopped" else {}
    if not state.requested:
        return None
    machines = state.machines
    if machines is None or asked.get("release"):
        return now  # a request that is still queued is given up at once, whatever becomes of machines
    if tpu.release == "never":
        return None
    if end == "succeeded" or asked.get("want") == "delete":
        return now
    if asked.get("keep") or not machines.costs:
        return None
    keep = tpu.keep_on_failure if end == "failed" else tpu.keep_on_stop
    return now + max(keep, cast("float", asked.get("keep_for") or 0.0))


def ended(work: Work) -> float | None:
    """Give the machines back when it is time; then drop the job, if that is wanted."""
    state = work.state
    if state.release_at is not None:
        if (left := state.release_at - work.clock.now()) > 0:
            return left
        return step_towards_release(work) or 0
    work.forget()
    (work.record.directory / "secrets.json").unlink(missing_ok=True)
    if state.asked.get("want") == "delete":
        work.store.remove(work.record)
    return None


def step_towards_release(work: Work) -> float | None:
    """Ask the allocator for one step; in how many seconds for the next, None once all is given back."""
    answer = work.ask_allocator(hookspecs.release)
    if isinstance(answer, Released):
        work.forget()
        work.write("released")
        work.log("tpu.log", "given back")
        return None
    work.waiting(answer.why, None if answer.memo is None else dict(answer.memo))
    return max(answer.look_again_after, 0.05)
