"""Create a TPU, follow a creation that is not visible yet, and confirm that one came to nothing.

A creation may have succeeded although no response came, and the API may show a new TPU late.
"""

from __future__ import annotations

from dataclasses import replace

from tpux import Denied, Waiting, release_lease
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
from tpux_gcp.labels import unique_name
from tpux_gcp.request import Answer, RequestContext, SavedState, deny
from tpux_gcp.spec import node_message, queued_resource_message
from tpux_gcp.stockout import on_create_failed, refuse, retry

# Seconds. A created TPU may stay invisible this long before it counts as lost.
INVISIBLE_FOR = 120.0
# A creation that was not answered may take effect this long after it was sent. Until then it is looked for.
UNANSWERED_FOR = 900.0
POLL, MAX_POLL = 1.0, 15.0
MAX_NAME_CONFLICTS = 5


def create_or_follow(context: RequestContext) -> Answer:
    """Take one step while no TPU of the name exists: create it, or follow the creation that was sent."""
    saved = context.saved
    if saved.borrowed:
        release_lease(context.lease_name, context.request.labels)
        return context.restart_candidate().wait(f"{context.name} no longer exists", 0)
    if saved.replacing:  # the previous TPU of this name is deleted now
        return context.restart_candidate().wait(f"requesting {saved.candidate}", 0)
    if not saved.operation:
        return _follow_unanswered(context) if _was_sent(saved) else _create(context)
    operation = context.api.operation(saved.operation)
    if operation is not None and not operation.done:
        return context.update(errors=0).wait(f"{saved.candidate}: creation in progress", poll_after(context))
    if operation is not None and operation.code:
        return on_create_failed(context, from_status(operation.code, operation.message, saved.project), gone=True)
    return _wait_until_visible(context) or retry(context, "disappeared after its creation")


def _wait_until_visible(context: RequestContext) -> Waiting | None:
    """Return the answer to wait for a TPU whose creation has succeeded, or whose operation the API has forgotten.

    It may exist since the API was asked for it, or become visible later; None once that is no longer possible.
    """
    absent_since = min(context.saved.absent_since or context.now, context.now)  # the clock was set back
    if context.now - absent_since >= INVISIBLE_FOR:
        return None
    why = f"{context.name} in {context.saved.zone}: created, but not visible yet"
    return context.update(absent_since=absent_since).wait(why, min(10.0, max(POLL, context.now - absent_since)))


def _follow_unanswered(context: RequestContext) -> Answer:
    """Look for a creation that was sent and not answered; request it again once it cannot appear any more.

    A queued resource is requested again at once, with the same request id: the API then creates one at most. Nodes
    have no such id.
    """
    context = _with_unanswered_operation(context)
    candidate = context.saved.candidate
    if context.saved.operation:
        return context.wait(f"{candidate}: creation in progress", POLL)
    if _left(context) <= 0:
        return context.restart_candidate().wait(f"{candidate}: nothing was created, requesting it again", 0)
    if context.queue:
        return _create(context.update(repeated=True))
    why = f"{candidate}: the request was not answered, and may still take effect; looking for {context.name}"
    return context.wait_with_history(why, _poll_unanswered(context))


def confirm_absent(context: RequestContext) -> Waiting | None:
    """Confirm that nothing was created, for a TPU that does not exist.

    Returns:
        The answer to wait while a creation may still take effect: its operation is running or has succeeded, or it was
        sent less than `UNANSWERED_FOR` seconds ago and not answered. None once nothing can appear any more.
    """
    saved = context.saved
    if saved.observed_state or not (saved.operation or _was_sent(saved)):
        return None
    if not saved.operation:
        context = _with_unanswered_operation(context)
    if name := context.saved.operation:
        operation = context.api.operation(name)
        if operation is not None and not operation.done:
            return context.wait(f"{context.name}: creation in progress", POLL)
        return None if operation is not None and operation.code else _wait_until_visible(context)
    if (left := _left(context)) <= 0:
        return None
    why = f"the creation of {context.name} in {saved.zone} was not answered, and may still take effect"
    return replace(context.wait(why, _poll_unanswered(context)), ends_within=left)


def _was_sent(saved: SavedState) -> bool:
    """Return whether the creation was sent, or may have been by a process that has ended."""
    return bool(saved.sent_at) and (saved.repeated or saved.request_id not in _about_to_send)


def _with_unanswered_operation(context: RequestContext) -> RequestContext:
    """Return the context with the operation of a creation that was not answered, if the API lists it."""
    context = context.update(errors=0, sent_at=min(context.saved.sent_at, context.now))  # the clock was set back
    location, name = context.saved.location, context.name
    target = location.queued_resource(name) if context.queue else location.node(name)
    operation = context.api.running_creation(location, target)
    return context.update(operation=operation) if operation else context


def _left(context: RequestContext) -> float:
    """Return for how many seconds more a creation that was not answered may take effect."""
    return context.saved.sent_at + UNANSWERED_FOR - context.now


def _poll_unanswered(context: RequestContext) -> float:
    left = _left(context)
    return min(MAX_POLL, max(POLL, (UNANSWERED_FOR - left) / 4), left)


def poll_after(context: RequestContext, longest: float = MAX_POLL) -> float:
    """Return the seconds until the next poll: soon after a change, less often the longer nothing changes."""
    return min(longest, max(POLL, context.observed_for / 4))


_about_to_send: set[str] = set()
"""The request ids of creations whose `sent_at` is being saved, and that this process sends in the next step."""


def _create(context: RequestContext) -> Answer:
    """Send the creation, in a step after the one that saves that it is sent: this process may die meanwhile."""
    saved, api = context.saved, context.api
    if saved.name == saved.configured_name:  # the API has answered that there is no such TPU
        name = unique_name(context.request)
        return context.update(name=name).wait_with_history(f"requesting {saved.candidate} as {name}", 0)
    if saved.request_id not in _about_to_send:
        _about_to_send.add(saved.request_id)
        return context.update(sent_at=context.now).wait_with_history(f"requesting {saved.candidate}", 0)
    _about_to_send.discard(saved.request_id)
    try:
        if context.queue:
            message = queued_resource_message(context.request, saved.candidate, saved.location, context.name)
            operation = api.create_queued_resource(saved.location, context.name, message, saved.request_id)
        else:
            message = node_message(context.request, saved.candidate, queued=False)
            operation = api.create_node(saved.location, context.name, message)
    except CloudError as error:
        return _not_created(context, error.problem)
    context = context.update(operation=operation, sent_at=0.0, repeated=False, errors=0)
    return context.wait_with_history(f"{saved.candidate}: request sent", POLL)


def _not_created(context: RequestContext, problem: Problem) -> Answer:
    if problem.unanswered:
        return context.sent_now().retry_later(problem)
    if not context.saved.repeated:
        context = context.update(sent_at=0.0)
    if problem.kind in NO_CAPACITY | REFUSED:
        # A refused request created nothing, but an earlier one that was not answered may have.
        return on_create_failed(context, problem, gone=problem.kind in REFUSED and context.nothing_sent)
    if problem.kind == "config":
        try:
            answer = on_create_failed(context, problem, gone=context.nothing_sent)
        except CloudError as error:  # unknown is whether the zone has the type
            answer = context.retry_later(error.problem)
        return refuse(context, answer)
    if problem.kind in {"missing", "busy"}:  # a reservation, network or project that does not exist
        hint = hint_for("config", problem.message, context.saved.project)
        return refuse(context, deny(Problem("config", problem.message, hint)))
    if problem.kind == "exists" and context.saved.errors >= MAX_NAME_CONFLICTS:
        hint = f"`tpux tpu describe {context.name}` shows what has this name"
        return Denied(InvalidConfigError(problem.message, hint).failure)
    if problem.kind in RETRYABLE:
        return context.retry_later(problem)
    return refuse(context, deny(problem))
