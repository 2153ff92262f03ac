"""Take one step of a job's life. A stop, a crash, an upgrade and a preemption take the same path.

A user's request comes first. Each state has one handler. It reads the disk and the outside world, does the one next
thing, and returns what follows: the change of state, and the seconds until the next step. Whatever must survive a crash
is written before the action that it announces. docs/architecture.md draws the states.
"""

from __future__ import annotations

from collections.abc import Callable

from tpux.errors import TpuxError
from tpux.lifecycle import transfer
from tpux.lifecycle.allocation import ended, provisioning, request_machines
from tpux.lifecycle.change_config import apply_config, discard_config, refuse_config
from tpux.lifecycle.context import JobContext, Next
from tpux.lifecycle.failure import describe_start, release_time, write_attempt_end
from tpux.lifecycle.job import InvalidStoredConfigError
from tpux.lifecycle.poll import drain_output
from tpux.lifecycle.restart import recovering
from tpux.lifecycle.run import running
from tpux.lifecycle.setup import setting_up
from tpux.lifecycle.stop import stopping, terminate_processes
from tpux.model.events import BackoffSkipped, Failed, JobState, ReleaseScheduled, RequestAccepted, StateChanged
from tpux.model.failures import Failure
from tpux.store import requests

RELEASE_DELAY_UNREADABLE = 3600.0
"""Seconds that the machines of a job are kept whose config can no longer be read."""


def _pending(context: JobContext) -> Next:
    """Request machines, unless the config is no longer valid."""
    try:
        context.opened  # noqa: B018  (it reads the config)
    except InvalidStoredConfigError as error:
        return refuse_config(context, error)
    return request_machines(context)


_HANDLERS: dict[JobState, Callable[[JobContext], Next]] = {
    "pending": _pending,
    "provisioning": provisioning,
    "setting-up": setting_up,
    "running": running,
    "recovering": recovering,
    "stopping": stopping,
    "stopped": ended,
    "succeeded": ended,
    "failed": ended,
}


def advance(context: JobContext) -> float | None:
    """Take one step of a job: apply a user's request, or else call the handler of the job's state.

    Args:
        context: the job, its lock held.

    Returns:
        Seconds until the next step; None when nothing is left to do.

    Raises:
        TpuxError, OSError: the step could not be taken. The job is as it was, and the step can be taken again.
        StepInterruptedError: the same, after `Connections.interrupt`.
    """
    context.connections.begin_step()
    try:
        context.write_changed_workers()
        if (request := pending_request(context)) is not None:
            step = apply_request(context, request)
        elif context.giving_up is not None:
            step = _failing(context, context.giving_up)
        else:
            step = _HANDLERS[context.state.state](context)
        if step.change is not None:
            context.enter(step.change)
        if request is not None:
            context.write(request)
            requests.remove_applied(context.record)
    except BaseException:
        context.restart_step()  # a generator that raised is exhausted, and would look as if it had completed
        raise
    finally:
        context.save_observations()
    return step.after


def give_up(context: JobContext, failure: Failure, problem: str) -> None:
    """Fail a job whose steps keep raising errors, whatever its rule says.

    Its programs are terminated first, as before every other end: each further `advance` is a step of that. If that
    keeps raising too, the job fails without it.

    Args:
        context: the job.
        failure: why it fails.
        problem: the error of this step.

    Raises:
        TpuxError, OSError: it could not be written.
    """
    if context.giving_up is None and context.state.allocation is not None:
        context.giving_up = failure
        return
    left = f"; programs may still run on the workers: {problem}" if context.giving_up is not None else ""
    context.enter(_failed(context, context.giving_up or failure, left))


def _failing(context: JobContext, failure: Failure) -> Next:
    """Terminate the programs of a job that is given up, fetch their last output, and fail the job."""
    if (delay := terminate_processes(context)) is not None:
        return Next(after=delay)
    lost = context.connections.unreachable
    if context.state.attempt_open:
        more, _ = drain_output(context, without=lost)
        if more:
            return Next()
    left = [f"; programs may still run on worker {index}: {worker.error}" for index, worker in sorted(lost.items())]
    return Next(_failed(context, failure, "".join(left[:1])))


def _failed(context: JobContext, failure: Failure, left: str) -> StateChanged:
    """Write how a job failed that is given up, and return the change of state.

    Args:
        context: the job.
        failure: why it fails.
        left: what may still run, for people.
    """
    try:
        release_at = release_time(context, "failed")
    except TpuxError:  # the config cannot be read: neither can what it says about releasing machines that cost money
        release_at = context.clock.now() + RELEASE_DELAY_UNREADABLE
    if context.state.attempt_open:
        write_attempt_end(context, failure)
    else:
        context.write(Failed(failure=failure))
    return StateChanged(to="failed", why=f"{failure.evidence}{left}", release_at=release_at)


def pending_request(context: JobContext) -> RequestAccepted | None:
    """Return the user request that is applied next; None if there is none, or none is valid yet.

    A restart waits until the job has stopped, and until a clean-up or a promised release has ended. A stop or
    delete that was requested after it replaces it: the job might wait without end for what the restart waits for.
    No request is applied while another job takes over the machines.
    """
    if context.state.given_to:
        return None  # first it is decided who holds the machines
    pending = requests.pending(context.record)
    if context.state.state == "stopping" or context.state.release_promised or context.clean_up is not None:
        pending = [request for request in pending if request.action in {"stop", "delete"}]
    return next(iter(pending), None)


def apply_request(context: JobContext, request: RequestAccepted) -> Next:
    """Apply a request, and return the transition, if it has one.

    The request is acknowledged after that: a supervisor that dies in between applies it again, which changes
    nothing; the other way round the request would be lost.
    """
    state = context.state
    if request.action in {"stop", "delete"}:
        return _stop(context, request)
    if request.action == "transfer":
        transfer.begin(context, request.to)
        return Next()
    context.forget_cut_off()
    why = describe_start(state, from_scratch=state.scratch_after(request.action))
    if state.ended:
        if request.config:
            apply_config(context, request.config)
        context.reset(keep_connections=state.resume_follows and not request.config)
        context.reload()
        context.ended_since = None
        return Next(StateChanged(to="pending", why="setup requested" if request.action == "setup" else why))
    if state.state == "recovering" and request.action in {"resume", "rerun"}:
        context.write(BackoffSkipped())  # without waiting for the rest of the backoff
        context.waiting(why)
    else:
        context.setup_run = None  # the job is active already; its setup may have been for some modules only
    return Next()


def _stop(context: JobContext, request: RequestAccepted) -> Next:
    state, now = context.state, context.clock.now()
    for earlier in requests.pending(context.record):
        if earlier.config and earlier.number < request.number:  # a restart that this replaces
            discard_config(context.record, earlier.config)
    if not state.ended:
        return Next() if state.state == "stopping" else Next(StateChanged(to="stopping", why=requests.STOPPING))
    if request.action == "delete":
        if state.requested and context.releasable_job.tpu.release != "never":
            context.write(ReleaseScheduled(release_at=now))
    elif request.release and state.requested:
        context.write(ReleaseScheduled(release_at=now))
    elif request.keep and not state.releasing:
        context.write(ReleaseScheduled(release_at=None))
    return Next()
