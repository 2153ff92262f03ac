"""From nothing to machines: one question at a time, the intent written down before the first."""

from __future__ import annotations

from tpux.errors import TpuxError
from tpux.lifecycle.context import JobContext
from tpux.lifecycle.restart import recover_or_fail
from tpux.plugin import spec
from tpux.plugin.failures import Failure
from tpux.plugin.machines import Denied, JsonValue, Ready, Waiting


def pending(context: JobContext) -> float:
    """The supervisor has taken the job up."""
    context.move("provisioning", why=f"asking {context.plan.allocator} for machines")
    return 0


def provisioning(context: JobContext) -> float:
    """Ask the allocator for the next step until the machines are ready, or will never be."""
    if not context.state.requested:
        context.write("allocation-requested", name=context.request().name, allocator=context.plan.allocator)
    answer = context.call_allocator(spec.provision)
    if isinstance(answer, Ready):
        context.write("allocated", allocation=answer.allocation.to_json(), saved_state=_saved_state(answer))
        context.log("tpu.log", f"ready: {answer.allocation.name}, {len(answer.allocation.workers)} worker(s)")
        if failure := _misfit(context):
            context.failed(failure)
            return recover_or_fail(context, failure)
        context.move("setting-up", why="preparing the workers")
        return 0
    if isinstance(answer, Denied):
        context.log("tpu.log", f"{answer.failure.kind}: {answer.failure.evidence}")
        context.failed(answer.failure)
        return recover_or_fail(context, answer.failure)
    context.waiting(answer.why, _saved_state(answer))
    return _patience(context, answer)


def _misfit(context: JobContext) -> Failure | None:
    """What the config wants of the machines that they do not have; only now is their number known for sure."""
    count, expected = len(context.allocation.workers), context.job.job.worker_num
    if expected is not None and count != expected:
        return Failure("config", evidence=f"the machines have {count} worker(s), job.worker_num says {expected}")
    try:
        context.chosen()
    except TpuxError as error:
        return Failure("config", evidence=error.message, hint="mend command.workers")
    return None


def _patience(context: JobContext, answer: Waiting) -> float:
    timeout = context.job.tpu.provision_timeout
    if timeout is None:
        return answer.poll_after
    if (left := context.state.since + timeout - context.clock.now()) > 0:
        return min(answer.poll_after, left)
    failure = Failure(
        "stockout",
        evidence=f"no machines for {timeout:.0f} s: {answer.why}",
        hint="raise tpu.provision_timeout, or list more zones in tpu.zone",
    )
    context.failed(failure)
    return recover_or_fail(context, failure)


def _saved_state(answer: Ready | Waiting) -> dict[str, JsonValue] | None:
    return None if answer.saved_state is None else dict(answer.saved_state)
