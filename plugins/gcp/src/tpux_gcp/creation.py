"""Create a TPU, follow a creation that is not visible yet, and confirm that one came to nothing.

A creation may have succeeded although no response came, and the API may show a new TPU late.
"""

from __future__ import annotations

from tpux import Denied, Waiting
from tpux_gcp.errors import (
    NO_CAPACITY,
    REFUSED,
    RETRYABLE,
    CloudError,
    InvalidConfigError,
    Problem,
    from_status,
    hint_for,
)
from tpux_gcp.fallback import on_create_failed, retry
from tpux_gcp.request import Answer, RequestContext, deny
from tpux_gcp.spec import node_message, queued_resource_message

# Seconds. A created TPU may stay invisible this long before it counts as lost.
INVISIBLE_FOR = 120.0
# A TPU whose creation was not answered must be absent this long before it counts as never created.
CONFIRM_ABSENT_AFTER = 10.0
POLL, MAX_POLL = 2.0, 15.0
MAX_NAME_CONFLICTS = 5


def create_or_follow(context: RequestContext) -> Answer:
    """Take one step while no TPU of the name exists: create it, or follow the creation that was sent."""
    saved = context.saved
    if saved.borrowed:
        return context.restart_candidate().wait(f"{context.name} no longer exists", 0)
    if saved.replacing:  # the previous TPU of this name is deleted now
        return context.restart_candidate().wait(f"requesting {saved.candidate}", 0)
    if not saved.operation:
        return _create(context)
    operation = context.api.operation(saved.operation)
    if operation is not None and not operation.done:
        return context.update(errors=0).wait(f"{saved.candidate}: creation in progress", poll_after(context))
    if operation is not None and operation.code:
        return on_create_failed(context, from_status(operation.code, operation.message, saved.project), gone=True)
    # The operation succeeded, or the API has forgotten it: the TPU may become visible later.
    absent_since = saved.absent_since or context.now
    if context.now - absent_since < INVISIBLE_FOR:
        return context.update(absent_since=absent_since).wait(f"{saved.candidate}: created, but not visible yet", 10)
    return retry(context, "disappeared after its creation")


def confirm_absent(context: RequestContext) -> Waiting | None:
    """Confirm that nothing was created, for a TPU that does not exist.

    Returns:
        The answer to wait while a creation may still take effect: its operation is running, or it was sent
        without a response less than `CONFIRM_ABSENT_AFTER` seconds ago. None once nothing can appear any more.
    """
    saved = context.saved
    if saved.observed_state:
        return None
    if saved.operation:
        operation = context.api.operation(saved.operation)
        if operation is None or operation.done:
            return None
        return context.wait(f"{context.name}: creation in progress", POLL)
    if saved.absent_since and context.now - saved.absent_since >= CONFIRM_ABSENT_AFTER:
        return None
    context = context.update(absent_since=saved.absent_since or context.now)
    return context.wait("confirming that nothing was created", CONFIRM_ABSENT_AFTER)


def poll_after(context: RequestContext, longest: float = MAX_POLL) -> float:
    """Return the seconds until the next poll: soon after a change, less often the longer nothing changes."""
    return min(longest, max(POLL, context.observed_for / 4))


def _create(context: RequestContext) -> Answer:
    saved, api = context.saved, context.api
    try:
        if context.queue:
            message = queued_resource_message(context.request, saved.candidate, saved.location)
            operation = api.create_queued_resource(saved.location, context.name, message, saved.request_id)
        else:
            message = node_message(context.request, saved.candidate, queued=False)
            operation = api.create_node(saved.location, context.name, message)
    except CloudError as error:
        return _not_created(context, error.problem)
    return context.update(operation=operation, errors=0).wait_with_history(f"{saved.candidate}: request sent", 2)


def _not_created(context: RequestContext, problem: Problem) -> Answer:
    if problem.kind in NO_CAPACITY | REFUSED:
        # A refused request created nothing, but an earlier one that was not answered may have.
        return on_create_failed(context, problem, gone=problem.kind in REFUSED and context.nothing_sent)
    if problem.kind in {"missing", "busy"}:  # a reservation, network or project that does not exist
        return deny(Problem("config", problem.message, hint_for("config", problem.message, context.saved.project)))
    if problem.kind == "exists" and context.saved.errors >= MAX_NAME_CONFLICTS:
        hint = f"`tpux tpu describe {context.name}` shows what has this name"
        return Denied(InvalidConfigError(problem.message, hint).failure)
    if problem.kind in RETRYABLE:  # if the TPU was created all the same, the next step finds it
        return context.update(unanswered=context.saved.unanswered or problem.kind != "throttled").retry_later(problem)
    raise CloudError(problem)
