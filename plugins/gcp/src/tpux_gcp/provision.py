"""Get a TPU, one step at a time. State is saved before each action, so a step can be repeated after a crash."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace

from tpux import Allocation, Denied, ProvisionRequest, Ready, TpuxError, Waiting, Worker, release_lease
from tpux_gcp import os_login
from tpux_gcp.creation import INVISIBLE_FOR, create_or_follow, poll_after
from tpux_gcp.credentials import Place
from tpux_gcp.errors import RETRYABLE, CloudError, InvalidConfigError, Problem, from_status
from tpux_gcp.labels import owner
from tpux_gcp.ownership import take_ownership
from tpux_gcp.release import delete_and_confirm
from tpux_gcp.request import Answer, RequestContext, SavedState, deny
from tpux_gcp.resource import LOST, Location, Node, TpuResource
from tpux_gcp.section import apply_flags
from tpux_gcp.spec import (
    SSH_KEYS,
    add_ssh_keys,
    check_login,
    check_values,
    find_candidates,
    node_message,
)
from tpux_gcp.stockout import BACKOFF, abandon, deny_refused, next_candidate, on_create_failed, replace_lost

_log = logging.getLogger(__name__)
# Seconds. A node in a transitional state this long is abandoned.
STUCK_AFTER = 1800.0
MAX_QUEUE_POLL = 30.0
# Asks the worker's metadata server: first for the current value, then for a change of it, which ends after five minutes
# in case the connection is lost. "Check if a VM was preempted" and "Query VM metadata", Compute Engine documentation.
# `GCE_METADATA_HOST` is the variable of Google's own libraries.
NOTICE = """
url=http://${GCE_METADATA_HOST:-metadata.google.internal}/computeMetadata/v1/instance/preempted
etag=NONE
while :; do
    answer=$(curl -sfi --max-time 330 -H Metadata-Flavor:Google \
        "$url?wait_for_change=true&timeout_sec=300&last_etag=$etag") || exit 1
    case $answer in *TRUE) echo 'the metadata server says instance/preempted: TRUE'; exit 0 ;; esac
    [ "$etag" = NONE ] || exit 1
    etag=$(printf '%s\n' "$answer" | tr -d '\r' | sed -n 's/^[Ee][Tt][Aa][Gg]: *//p')
    [ -n "$etag" ] || exit 1
done
"""
Details = dict[str, str]
"""The details of a worker, for the transport."""


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
        enabled = os_login.is_enabled(tpu.metadata)
        if enabled or (enabled is None and os_login.is_enabled_in_project(place)):
            saved = replace(saved, os_login_user=_import_keys(request))
    return Waiting(f"requesting {saved.candidate}", 0, saved.to_json())


def _import_keys(request: ProvisionRequest) -> str:
    """Import the public keys into the profile of the credentials' account; return the login user."""
    account = str(request.resolved.get("login_account") or "")
    return os_login.import_keys(Place.from_json(request.resolved), account, request.public_keys)


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


def add_public_keys(context: RequestContext, resource: TpuResource) -> Waiting | None:
    """Add the public keys that are missing to the metadata of the nodes, one node per step.

    Where OS Login is enabled they are in the user's profile instead.

    Returns:
        The answer to wait for an update, or None once every node has the keys.

    Raises:
        InvalidConfigError: there is no account that could log in.
        CloudError: a call of the API failed.
    """
    keys, saved = context.request.public_keys, context.saved
    if not keys:
        return None
    if saved.metadata_operation and (operation := context.api.operation(saved.metadata_operation)) is not None:
        if not operation.done:
            return context.wait(f"adding public keys to {context.name}", 1)
        if operation.code:
            problem = from_status(operation.code, operation.message, saved.project)
            return context.update(metadata_operation="").retry_later(Problem("transient", problem.message))
    for node in resource.nodes:
        metadata = dict(node.metadata)
        if _uses_os_login(context, node):
            if not saved.os_login_user:
                imported = context.update(os_login_user=_import_keys(context.request))
                return imported.wait(f"imported the public keys for {node.name}", 0)
        elif not set(keys) <= set(metadata.get(SSH_KEYS, "").splitlines()):
            updated = add_ssh_keys(metadata, keys)
            name = context.api.update_node(saved.location, node.name, "metadata", updated)
            return context.update(metadata_operation=name).wait(f"adding public keys to {node.name}", 1)
    return None


def _uses_os_login(context: RequestContext, node: Node) -> bool:
    enabled = os_login.is_enabled(node.metadata)
    return bool(context.saved.os_login_user) if enabled is None else enabled


def build_allocation(
    context: RequestContext, resource: TpuResource, published: Callable[[RequestContext, Node], list[Details]]
) -> Allocation:
    """Return the machines of a ready TPU.

    Args:
        context: the step.
        resource: the TPU.
        published: returns what each worker of a node has published.
    """
    workers: list[Worker] = []
    for number, node in enumerate(resource.nodes):
        user = {"user": context.saved.os_login_user} if _uses_os_login(context, node) else {}
        for endpoint, details in zip(node.endpoints, published(context, node), strict=True):
            address = endpoint.internal if context.tpu.internal_ips or not endpoint.external else endpoint.external
            workers.append(Worker(len(workers), number, address, endpoint.internal, {**details, **user}))
    return Allocation(
        name=context.name,
        transport="ssh",
        workers=tuple(workers),
        slices=len(resource.nodes),
        zone=context.saved.zone,
        borrowed=context.saved.borrowed,
        notice=NOTICE,
        accelerator=context.saved.accelerator,
        pricing=context.tpu.pricing,
    )


def current_workers(request: ProvisionRequest, *, queue: bool) -> list[Worker] | None:
    """Return the workers with the host keys that they publish now; None if the job has no ready TPU.

    Raises:
        TpuxError: the API failed, or does not have the host keys of all workers.
    """
    try:
        context = RequestContext.load(request, queue=queue)
        resource = None if context is None else context.get_resource()
        if context is None or resource is None or resource.status != "ready":
            return None
        if owner(resource.labels, request) not in {"ours", "former"} and not context.saved.borrowed:
            return None
        workers = build_allocation(context, resource, published_by).workers
    except (CloudError, InvalidConfigError) as error:
        raise TpuxError(str(error), where=f"TPU {request.name}") from error
    if missing := [worker.index for worker in workers if "host_keys" not in worker.details]:
        raise TpuxError(f"worker {missing[0]} publishes no host key", where=f"TPU {request.name}")
    return list(workers)


def published_or_nothing(context: RequestContext, node: Node) -> list[Details]:
    """Return what each worker has published; nothing if it is unknown: ssh then trusts the first host key."""
    try:
        return published_by(context, node)
    except CloudError as error:
        _log.info("no guest attributes of %s: %s", node.name, error)
        return [{}] * len(node.endpoints)


def published_by(context: RequestContext, node: Node) -> list[Details]:
    """Return what each worker has published: its host keys, one `TYPE KEY` per line, and the name of its VM.

    Raises:
        CloudError: the call failed.
    """
    location = context.saved.location
    published = context.api.guest_attributes(location, node.name)
    if len(published) != len(node.endpoints):
        return [{}] * len(node.endpoints)
    return [_details(attributes, location) for attributes in published]


def _details(attributes: Mapping[tuple[str, str], str], location: Location) -> Details:
    keys = sorted((kind, key) for (namespace, kind), key in attributes.items() if namespace == "hostkeys")
    names = [name for (_, key), name in attributes.items() if key == "hostname"]  # where gcloud looks for it
    instance = {"instance": names[0], "project": location.project, "zone": location.zone} if names else {}
    return {**({"host_keys": "\n".join(f"{kind} {key}" for kind, key in keys)} if keys else {}), **instance}
