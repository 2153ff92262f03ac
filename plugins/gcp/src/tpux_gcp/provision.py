"""Get a TPU, one step at a time. State is saved before each action, so a step can be repeated after a crash."""

from __future__ import annotations

import logging
from dataclasses import replace

from tpux import Denied, ProvisionRequest, Ready, Waiting, release_lease
from tpux_gcp.creation import INVISIBLE_FOR, create_or_follow, poll_after
from tpux_gcp.credentials import Place
from tpux_gcp.errors import RETRYABLE, CloudError, InvalidConfigError, from_status
from tpux_gcp.ownership import take_ownership
from tpux_gcp.release import delete_and_confirm
from tpux_gcp.request import Answer, RequestContext, SavedState, deny
from tpux_gcp.resource import LOST, TpuResource
from tpux_gcp.section import apply_flags
from tpux_gcp.spec import (
    check_login,
    check_values,
    find_candidates,
    node_message,
    os_login_enabled,
)
from tpux_gcp.stockout import BACKOFF, abandon, deny_refused, next_candidate, on_create_failed, replace_lost
from tpux_gcp.workers import (
    add_public_keys,
    build_allocation,
    import_keys,
    os_login_enabled_in_project,
    published_or_nothing,
)

_log = logging.getLogger(__name__)
# Seconds. A node in a transitional state this long is abandoned.
STUCK_AFTER = 1800.0
MAX_QUEUE_POLL = 30.0


def provision(request: ProvisionRequest, *, queue: bool) -> Answer:
    """Take one step towards the requested machines."""
    try:
        context = RequestContext.load(request, queue=queue)
        if context is None:
            return _begin(request)
    except InvalidConfigError as error:
        return Denied(error.failure)
    except CloudError as error:  # nothing was requested yet
        return Waiting(str(error), BACKOFF.first) if error.problem.kind in RETRYABLE else deny(error.problem)
    try:
        if context.saved.phase == "deleting":
            return delete_and_confirm(context) or _after_delete(context)
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
        return context.retry_later(error.problem) if error.problem.kind in RETRYABLE else deny(error.problem)


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
    if context.saved.borrowed:
        release_lease(context.lease_name, context.request.labels)
    return next_candidate(context)


def _back_off(context: RequestContext) -> Answer:
    candidate = context.saved.candidate
    remaining = context.saved.backoff_until - context.now
    if 0 < remaining <= BACKOFF.cap:  # longer only if the clock was set back
        return context.wait_with_history(f"backing off before requesting {candidate} again", remaining)
    return context.restart_candidate().wait(f"requesting {candidate}", 0)


def _request(context: RequestContext) -> Answer:
    """Look at what exists under the TPU's name, and take the one step that follows."""
    resource = context.get_resource()
    if resource is None:
        return create_or_follow(context)
    context = context.observed(resource.state).update(absent_since=0.0)
    if (waiting := take_ownership(context, resource)) is not None:
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


def _wait_until_ready(context: RequestContext, resource: TpuResource) -> Answer:
    saved, has_others = context.saved, len(context.candidates) > 1
    if resource.status == "deleting":  # by somebody, or suspended by the cloud
        return context.update(replacing=True).wait(resource.state, poll_after(context))
    if resource.status == "queued":
        waited = context.now - saved.candidate_since
        if has_others and waited >= context.tpu.zone_patience:
            return abandon(context, f"no capacity within {context.tpu.zone_patience:.0f} s")
        return context.wait_with_history(
            f"{saved.candidate}: {resource.state}", min(MAX_QUEUE_POLL, max(2.0, waited / 2))
        )
    if resource.status == "creating" and not saved.borrowed:
        if (not context.queue or has_others) and context.observed_for >= STUCK_AFTER:
            return abandon(context, f"stuck: {resource.state}")
        if saved.operation and context.observed_for >= INVISIBLE_FOR and not context.queue:
            operation = context.api.operation(saved.operation)
            if operation is not None and operation.code:
                problem = from_status(operation.code, operation.message, saved.project)
                return on_create_failed(context, problem)
    longest = 30.0 if context.observed_for >= INVISIBLE_FOR else 15.0
    return context.wait_with_history(f"{saved.candidate}: {resource.state}", poll_after(context, longest))


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
    return Ready(allocation, context.update(metadata_operation="").saved.to_json())
