"""Apply user requests (stop, resume, rerun, delete, set up) to a job in any state, in their order."""

from __future__ import annotations

from tpux.lifecycle import transfer
from tpux.lifecycle.change_config import apply_config, discard_config
from tpux.lifecycle.context import JobContext, Next
from tpux.plugin.events import BackoffSkipped, ReleaseScheduled, RequestAccepted, StateChanged
from tpux.store import requests


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
    if state.ended:
        if request.config:
            apply_config(context, request.config)
        context.reset(keep_connections=state.resume_follows and not request.config)
        context.reload()
        context.ended_since = None
        verbs = {"resume": "resuming", "rerun": "rerunning"}
        why = f"{verbs[request.action]} (attempt {state.attempt + 1})" if request.action in verbs else "setup requested"
        return Next(StateChanged(to="pending", why=why))
    if state.state == "recovering" and request.action == "resume":
        context.write(BackoffSkipped())  # without waiting for the rest of the backoff
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
