"""Apply user requests (stop, resume, rerun, delete, set up) to a job in any state."""

from __future__ import annotations

from tpux.lifecycle.change_config import apply_config
from tpux.lifecycle.context import JobContext, Next
from tpux.store import requests
from tpux.store.requests import UserRequest


def pending_request(context: JobContext) -> UserRequest | None:
    """Return the latest user request if it is new and valid in the current state; otherwise it stays pending."""
    request = requests.read(context.record.directory)
    if request is None or request.id == context.state.last_request_id:
        return None
    if context.state.state == "stopping" and request.action not in {"stop", "delete"}:
        return None
    return request


def apply_request(context: JobContext, request: UserRequest) -> Next:
    """Apply a request, and return the transition, if it has one.

    The request is acknowledged after that: a supervisor that dies in between applies it again, which changes
    nothing; the other way round the request would be lost.
    """
    state = context.state
    if request.action in {"stop", "delete"}:
        return _stop(context, request)
    if state.ended:
        if changed := request.options.get("config"):
            apply_config(context, str(changed))
        context.reset()
        context.reload()
        verbs = {"resume": "resuming", "rerun": "rerunning"}
        why = f"{verbs[request.action]} (attempt {state.attempt + 1})" if request.action in verbs else "setup requested"
        return Next("pending", facts={"why": why})
    if state.state == "recovering" and request.action == "resume":
        context.write("backoff-skipped")  # without waiting for the rest of the backoff
    else:
        context.setup_run = None  # the job is active already; its setup may have been for some modules only
    return Next()


def _stop(context: JobContext, request: UserRequest) -> Next:
    state, now = context.state, context.clock.now()
    if not state.ended:
        return Next() if state.state == "stopping" else Next("stopping", facts={"why": "stop requested"})
    if request.action == "delete":
        if state.requested and context.job.tpu.release != "never":
            context.write("release-scheduled", release_at=now)
    elif request.options.get("release") and state.requested:
        context.write("release-scheduled", release_at=now)
    elif request.options.get("keep"):
        context.write("release-scheduled", release_at=None)
    return Next()
