"""From nothing to machines: one question at a time, the intent written down before the first."""

from __future__ import annotations

from tpux import hookspecs
from tpux.errors import TpuxError
from tpux.failures import Failure
from tpux.lifecycle.recovering import recover_or_fail
from tpux.lifecycle.work import Work
from tpux.machines import Denied, JsonValue, Ready, Waiting


def pending(work: Work) -> float:
    """The supervisor has taken the job up."""
    work.move("provisioning", why=f"asking {work.plan.allocator} for machines")
    return 0


def provisioning(work: Work) -> float:
    """Ask the allocator for the next step until the machines are ready, or will never be."""
    if not work.state.requested:
        work.write("requested", name=work.request().name, allocator=work.plan.allocator)
    answer = work.ask_allocator(hookspecs.provision)
    if isinstance(answer, Ready):
        work.write("allocated", allocation=answer.allocation.to_json(), memo=_memo(answer))
        work.log("tpu.log", f"ready: {answer.allocation.name}, {len(answer.allocation.workers)} worker(s)")
        if failure := _misfit(work):
            work.failed(failure)
            return recover_or_fail(work, failure)
        work.move("setting-up", why="preparing the workers")
        return 0
    if isinstance(answer, Denied):
        work.log("tpu.log", f"{answer.failure.kind}: {answer.failure.evidence}")
        work.failed(answer.failure)
        return recover_or_fail(work, answer.failure)
    work.waiting(answer.why, _memo(answer))
    return _patience(work, answer)


def _misfit(work: Work) -> Failure | None:
    """What the config wants of the machines that they do not have; only now is their number known for sure."""
    count, expected = len(work.allocation.workers), work.job.job.worker_num
    if expected is not None and count != expected:
        return Failure("config", evidence=f"the machines have {count} worker(s), job.worker_num says {expected}")
    try:
        work.chosen()
    except TpuxError as error:
        return Failure("config", evidence=error.message, hint="mend command.workers")
    return None


def _patience(work: Work, answer: Waiting) -> float:
    timeout = work.job.tpu.provision_timeout
    if timeout is None:
        return answer.look_again_after
    if (left := work.state.since + timeout - work.clock.now()) > 0:
        return min(answer.look_again_after, left)
    failure = Failure(
        "stockout",
        evidence=f"no machines for {timeout:.0f} s: {answer.why}",
        hint="raise tpu.provision_timeout, or list more zones in tpu.zone",
    )
    work.failed(failure)
    return recover_or_fail(work, failure)


def _memo(answer: Ready | Waiting) -> dict[str, JsonValue] | None:
    return None if answer.memo is None else dict(answer.memo)
