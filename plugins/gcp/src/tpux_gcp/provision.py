"""Get a TPU, one step at a time. State is saved before each action, so a step can be repeated after a crash."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from tpux import Denied, ProvisionRequest, Ready, Waiting
from tpux_gcp import borrowing, login
from tpux_gcp.credentials import Place
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
from tpux_gcp.existence import INVISIBLE_FOR, POLL, Absent, MayAppear, look_up, poll_after
from tpux_gcp.labels import JOB, STORE, USER, owner_labels, unique_name
from tpux_gcp.release import delete_and_confirm
from tpux_gcp.request import Answer, RequestContext, SavedState, about_to_send, deny
from tpux_gcp.resource import LOST, TpuResource
from tpux_gcp.section import apply_flags
from tpux_gcp.spec import (
    check_existing,
    check_login,
    check_values,
    node_message,
    os_login_enabled,
    queued_resource_message,
)
from tpux_gcp.stockout import (
    BACKOFF,
    abandon,
    candidates_of,
    deny_refused,
    find_candidates,
    next_candidate,
    no_such_tpu,
    on_create_failed,
    refuse,
    replace_lost,
    retry,
)
from tpux_gcp.workers import (
    add_public_keys,
    build_allocation,
    import_keys,
    os_login_enabled_in_project,
    published_or_nothing,
)

# Seconds. A node in a transitional state this long is abandoned.
STUCK_AFTER = 1800.0
MAX_QUEUE_POLL = 30.0
MAX_REFUSALS = 5
"""Refusals in a row, of a name that is taken or of what the state may forbid, before they are final."""
# The creation of a node that was not answered, and of which the API lists no operation, is sent again after this.
RESEND_AFTER = 60.0


def provision(request: ProvisionRequest, *, queue: bool) -> Answer:
    """Take one step towards the requested machines."""
    try:
        context = RequestContext.load(request, queue=queue)
        if context is None:
            return _begin(request)
    except InvalidConfigError as error:
        return Denied(error.failure)
    except CloudError as error:  # nothing was requested yet
        return _on_error(request, error.problem, Waiting(str(error), BACKOFF.first))
    try:
        if context.saved.phase == "deleting":
            again = context.saved.after_delete == "retry"
            return delete_and_confirm(context, again=again) or _after_delete(context)
        if context.saved.phase == "backing-off":
            return _back_off(context)
        if context.saved.phase == "refused":
            return deny_refused(context)
        return _request(context)
    except InvalidConfigError as error:
        return Denied(error.failure)
    except CloudError as error:
        if error.problem.kind == "forbidden" and context.saved.phase == "requesting" and context.nothing_sent:
            return on_create_failed(context, error.problem, gone=True)  # the project may not even look into the zone
        return _later_or_deny(context, error.problem)


def _later_or_deny(context: RequestContext, problem: Problem) -> Answer:
    """Return the answer after a call that failed, other than a creation."""
    waiting = context.retry_later(problem)
    # Of what exists, a refusal may be due to its state, whatever it says: it is read again before that is final.
    again = problem.kind == "config" and not context.nothing_sent and context.saved.errors < MAX_REFUSALS
    return waiting if again else _on_error(context.request, problem, waiting)


def _on_error(request: ProvisionRequest, problem: Problem, waiting: Waiting) -> Answer:
    if problem.kind == "auth":
        return login.refused(request, problem, waiting)
    return waiting if problem.kind in RETRYABLE else deny(problem)


def _begin(request: ProvisionRequest) -> Answer:
    """Validate the config before anything is requested."""
    tpu = apply_flags(request.tpu)
    request = replace(request, tpu=tpu)
    place = Place.from_json(request.resolved)
    candidates = find_candidates(tpu, place.zone)
    for candidate in candidates:
        node_message(request, candidate, queued=False)
    check_values(tpu, request.public_keys)
    check_login(request.public_keys)
    saved = SavedState.begin(place, request, candidates[0])
    if request.public_keys:
        enabled = os_login_enabled(tpu.metadata)
        if enabled or (enabled is None and os_login_enabled_in_project(place)):
            saved = replace(saved, os_login_user=import_keys(request))
    return Waiting(f"requesting {saved.candidate}", 0, saved.to_json())


def _after_delete(context: RequestContext) -> Answer:
    left = borrowing.release(context)
    return left if isinstance(left, Waiting) else next_candidate(context.update(leased=()))


def _back_off(context: RequestContext) -> Answer:
    candidate = context.saved.candidate
    remaining = context.saved.backoff_until - context.now
    if 0 < remaining <= BACKOFF.cap:  # longer only if the clock was set back
        return context.wait_with_history(f"backing off before requesting {candidate} again", remaining)
    return context.restart_candidate().wait(f"requesting {candidate}", 0)


def _request(context: RequestContext) -> Answer:
    """Look at what exists under the TPU's name, and take the one step that follows."""
    if context.may_send:
        return _create(context)  # the step before has looked, and has saved that it is sent
    context, found = look_up(context)
    login.accepted(context.request.directory)
    if isinstance(found, Absent):
        return _on_absent(context, found.failure)
    if isinstance(found, MayAppear):
        return _on_unanswered(context, found)
    resource = found.resource
    context = context.observed(resource.state).update(absent_since=0.0)
    if (waiting := _take_ownership(context, resource)) is not None:
        return waiting
    if resource.status == "ready" and resource.workers:
        return _ready(context, resource)
    if resource.status == "failed" and resource.queued_resource and not context.saved.borrowed:
        code, message = resource.error or (13, resource.state)
        return on_create_failed(context, from_status(code, message, context.saved.project))
    if resource.status in LOST:
        return replace_lost(context, resource)
    if resource.status == "stopped":
        return _start_stopped(context, resource)
    return _wait_until_ready(context, resource)


def _on_unanswered(context: RequestContext, found: MayAppear) -> Answer:
    """Wait for a creation that may still take effect, or send it again, where that cannot create two."""
    saved = context.saved
    if context.queue and not saved.operation:  # with the same request id the API creates one at most
        return _create(context.update(repeated=True))
    if not saved.operation and context.now - saved.sent_at >= RESEND_AFTER:
        # Names are unique in a zone: of two creations the later one is refused, or adopted by its labels.
        return _create(context.update(repeated=True, unanswered_at=saved.sent_at))
    return context.wait_with_history(found.why, found.poll_after)


def _on_absent(context: RequestContext, failure: Problem | None) -> Answer:
    """Take one step while no TPU of the name exists or may still appear: create it, unless a creation has failed."""
    saved = context.saved
    if saved.borrowed:
        left, again = borrowing.release(context), context.restart_candidate().update(leased=())
        return left if isinstance(left, Waiting) else again.wait(f"{context.name} no longer exists", 0)
    if saved.replacing:  # the previous TPU of this name is deleted now
        return context.restart_candidate().wait(f"requesting {saved.candidate}", 0)
    if failure is not None:
        return on_create_failed(context, failure, gone=True)
    if saved.operation or saved.observed_state:
        return retry(context, "disappeared after its creation")
    if context.was_sent:
        return context.restart_candidate().wait(f"{saved.candidate}: nothing was created, requesting it again", 0)
    return _create(context)


def _create(context: RequestContext) -> Answer:
    """Send the creation, in a step after the one that saves that it is sent: this process may die meanwhile."""
    saved, api = context.saved, context.api
    if context.tpu.existing:
        return no_such_tpu(context)
    if saved.name == saved.configured_name:  # the API has answered that there is no such TPU
        name = unique_name(context.request)
        return context.update(name=name).wait_with_history(f"requesting {saved.candidate} as {name}", 0)
    if not context.may_send:
        context = context.update(sent_at=context.now)
        about_to_send.add(context.intent)
        return context.wait_with_history(f"requesting {saved.candidate} as {context.name}", 0)
    request, place = context.request, saved.location
    if context.queue:
        queued = queued_resource_message(request, saved.candidate, place, context.name)
        send = partial(api.create_queued_resource, place, context.name, queued, saved.request_id)
    else:
        send = partial(api.create_node, place, context.name, node_message(request, saved.candidate, queued=False))
    about_to_send.discard(context.intent)  # until here nothing is sent, whatever fails
    try:
        operation = send()
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
        return refuse(context, _on_bad_request(context, problem))
    too_often = context.saved.errors >= MAX_REFUSALS
    if problem.kind == "missing" or (problem.kind == "busy" and too_often):
        # a reservation, network or project that does not exist
        hint = hint_for("config", problem.message, context.saved.project)
        return refuse(context, deny(Problem("config", problem.message, hint)))
    if problem.kind == "exists" and too_often:
        hint = f"`tpux tpu describe {context.name}` shows what has this name"
        return Denied(InvalidConfigError(problem.message, hint).failure)
    return refuse(context, _later_or_deny(context, problem))


def _on_bad_request(context: RequestContext, problem: Problem) -> Answer:
    if context.saved.repeated and context.get_resource() is not None:
        return context.wait_with_history(f"{context.saved.candidate}: created by an earlier request", 0)
    try:
        return on_create_failed(context, problem, gone=context.nothing_sent)
    except CloudError as error:  # unknown is whether the zone has the type
        return _later_or_deny(context, error.problem)


def _take_ownership(context: RequestContext, resource: TpuResource) -> Waiting | None:
    """Make sure that the job may use an existing TPU: it created it or took it over, or borrows it.

    Returns:
        The answer to wait while its labels change, borrowing begins, or another job has borrowed it; None once the job
        may use it.

    Raises:
        InvalidConfigError: it belongs to another job, is not what the config asks for, or cannot be claimed.
        CloudError: a call of the API failed.
    """
    request, saved = context.request, context.saved
    whose = borrowing.owner(context, resource)
    wiped = whose == "nobody" and context.has_own_name
    if (whose in {"ours", "former"} or wiped) and (waiting := borrowing.wait_for_borrower(context, resource)):
        return waiting
    if whose == "ours":
        if saved.borrowed and context.has_own_name:  # its labels were wiped, and are there again
            return context.update(borrowed=False).wait(f"{context.name} is this job's own", 0)
        return None
    if whose == "former":
        return _change_labels(context, resource)
    if whose == "another":
        job, user, store = (resource.labels.get(key, "?") for key in (JOB, USER, STORE))
        if store == request.labels[STORE]:
            taken_over = f"`tpux run CONFIG --on {job}` takes it over once that job has ended"
            where, hint = "", f"{taken_over}, `tpux delete {job}` releases it, or choose another tpu.name"
        else:
            where, hint = f" in another store ({store})", "choose another tpu.name"
        raise InvalidConfigError(f"TPU {context.name} in {saved.zone} belongs to job {job} of {user}{where}", hint)
    borrowing.check_whole(context.api, saved.location, context.name, resource)
    check_existing(context.tpu, context.name, candidates_of(context), saved.zone, resource)
    if wiped:
        return borrowing.wait_for_claim(context, resource) or _change_labels(context, resource)
    if not saved.borrowed:  # saved before the lease is acquired, so that a release knows about it
        borrowed = context.update(borrowed=True, accelerator=resource.accelerator or saved.accelerator)
        return borrowed.leasing(resource).wait(f"borrowing {context.name}, which this job did not create", 0)
    return borrowing.acquire(context, resource)


def _change_labels(context: RequestContext, resource: TpuResource) -> Waiting | None:
    """Give the nodes of a TPU that was taken over, or lost its labels, those of this job, the first node last.

    The first node's labels count.
    A queued resource keeps the labels that it was created with; they count only while it has no nodes.

    Returns:
        The answer to wait for an update; None if there is nothing to update.

    Raises:
        CloudError: a call of the API failed.
    """
    if resource.status != "ready":
        return None  # it is replaced, or waited for
    saved, ours = context.saved, owner_labels(context.request.labels)
    if saved.metadata_operation and (operation := context.api.operation(saved.metadata_operation)) is not None:
        if not operation.done:
            return context.wait(f"taking over {context.name}", 1)
        if operation.code:
            problem = from_status(operation.code, operation.message, saved.project)
            return context.update(metadata_operation="").retry_later(Problem("transient", problem.message))
    for node in reversed(resource.nodes):
        if not ours.items() <= node.labels.items():
            name = context.api.update_node(saved.location, node.name, "labels", {**node.labels, **ours})
            return context.update(metadata_operation=name).wait(f"taking over {node.name}: changing its labels", 1)
    return None


def _wait_until_ready(context: RequestContext, resource: TpuResource) -> Answer:
    saved, has_others = context.saved, len(candidates_of(context)) > 1
    if resource.status == "deleting":  # by somebody, or suspended by the cloud
        return context.update(replacing=True).wait(resource.state, poll_after(context.observed_for))
    if resource.status == "queued":
        waited = context.now - saved.candidate_since
        if has_others and waited >= context.tpu.zone_patience:
            return abandon(context, f"no capacity within {context.tpu.zone_patience:.0f} s")
        return context.wait_with_history(
            f"{saved.candidate}: {resource.state}", min(MAX_QUEUE_POLL, max(2.0, waited / 2))
        )
    if resource.status == "creating" and not saved.borrowed:
        if (not context.queue or has_others) and not resource.unknown and context.observed_for >= STUCK_AFTER:
            return abandon(context, f"stuck: {resource.state}")
        if saved.operation and context.observed_for >= INVISIBLE_FOR and not context.queue:
            operation = context.api.operation(saved.operation)
            if operation is not None and operation.code:
                problem = from_status(operation.code, operation.message, saved.project)
                return on_create_failed(context, problem)
    longest = 30.0 if context.observed_for >= INVISIBLE_FOR else 15.0
    why = f"{resource.state}, which this version of tpux does not know: waiting" if resource.unknown else resource.state
    return context.wait_with_history(f"{saved.candidate}: {why}", poll_after(context.observed_for, longest))


def _start_stopped(context: RequestContext, resource: TpuResource) -> Answer:
    """Start a node with one worker. The API cannot stop or start slices with several: replace those."""
    if resource.queued_resource or len(resource.nodes) != 1 or resource.workers > 1:
        return replace_lost(context, resource)
    context.api.start_node(context.saved.location, resource.nodes[0].name)
    return context.wait(f"{resource.state}: starting it", 2)


def _ready(context: RequestContext, resource: TpuResource) -> Answer:
    if (waiting := add_public_keys(context, resource)) is not None:
        return waiting
    allocation = build_allocation(context, resource, published_or_nothing)
    return Ready(allocation, context.update(operation="", sent_at=0.0, metadata_operation="").saved.to_json())
