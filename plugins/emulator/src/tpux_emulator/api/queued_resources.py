"""The API's methods on queued resources: create, get, list, reset, delete."""

from __future__ import annotations

from collections.abc import Callable

from tpux_emulator.api import nodes
from tpux_emulator.api.alpha import checked_queued_resource, of_alpha
from tpux_emulator.api.call import LOCATION, Call, Method, check_id
from tpux_emulator.api.paging import PAGE_PARAMETERS, list_resources
from tpux_emulator.clock import parse_timestamp
from tpux_emulator.cloud import capacity, operations, queue_state, views
from tpux_emulator.cloud.cloud import Cloud
from tpux_emulator.cloud.fault_rules import Effect
from tpux_emulator.cloud.records import OperationRecord, QueuedRecord, short_name
from tpux_emulator.errors import ApiError, Status, already_exists, invalid, not_found, precondition
from tpux_emulator.messages import Empty, NodeSpec, QueuedResource, QueuedState, QueueingPolicy
from tpux_emulator.protojson import JsonObject, Message

Q = QueuedState
# States in which a queued resource may be deleted without `force` (reference of queuedResources.delete).
_DELETABLE = (Q.CREATING, Q.ACCEPTED, Q.WAITING_FOR_RESOURCES, Q.FAILED, Q.SUSPENDED)


def _find(call: Call) -> QueuedRecord:
    """Return the queued resource that the path names.

    Raises:
        ApiError: 404.
    """
    name = call.name("queuedResources")
    if name not in call.cloud.queued:
        raise not_found(name)
    return call.cloud.queued[name]


def _once(call: Call, act: Callable[[Call], OperationRecord]) -> JsonObject:
    """Return the operation of a `requestId`, starting it unless it was started before (AIP-155)."""
    request_id = call.query.get("requestId", "")
    key = f"{call.parent} {request_id}"
    known = call.cloud.request_ids.get(key) if request_id else None
    if known is not None and known.operation in call.cloud.operations:
        return views.operation(call.cloud.operations[known.operation])
    operation = act(call)
    if request_id:
        call.cloud.remember_request_id(key, operation)
    return views.operation(operation)


def _create(call: Call) -> OperationRecord:
    """Create a queued resource.

    Raises:
        ApiError: 400 for a bad spec, 403 for an unknown zone, 404 for an unknown reservation, 409 if its name or a
            node's is taken, 429 above a quota.
    """
    cloud = call.cloud
    spec = checked_queued_resource(call.body(QueuedResource, "queued_resource"), alpha=call.alpha)
    queued_id = check_id(call.query.get("queuedResourceId", ""), "queued_resource_id")
    name = f"{call.parent}/queuedResources/{queued_id}"
    cloud.catalog.check_zone(call.zone)
    if spec.tpu is None:
        raise invalid('The "tpu" field is required.', "queued_resource.tpu")
    if spec.spot is not None and spec.guaranteed is not None:
        raise invalid("Only one tier can be set: spot or guaranteed.", "queued_resource.tier")
    _check_reservation(cloud, spec)
    for each in spec.tpu.node_spec:
        several = each.multislice_params
        nodes.check_spec(cloud, call.zone, each.node, slices=several.node_count if several else 1)
    if name in cloud.queued:
        raise already_exists(name)
    requested = [(node_id, each.node) for each in spec.tpu.node_spec for node_id in _checked_ids(each, queued_id)]
    names = [f"{call.parent}/nodes/{node_id}" for node_id, _ in requested]
    for node in names:
        if node in cloud.nodes or any(node in other.nodes for other in cloud.queued.values()):
            raise already_exists(node)
    tier_spot, specs = spec.spot is not None, [node for _, node in requested]
    over_quota = capacity.check_quota(cloud, call.zone, specs, spot=tier_spot, queued=True)
    capacity.reject_stockout(cloud, call.zone, name)
    operation = operations.begin(cloud, "create", name)
    record = QueuedRecord(name=name, spec=spec, created=cloud.clock.now(), nodes=names, operation=operation.name)
    record.valid_after, record.valid_until = _validity(spec.queueing_policy, record.created)
    record.creation_error = over_quota
    if rule := cloud.consume_rule(Effect.FAIL, zone=call.zone, method="queuedResources.create", name=name):
        record.creation_error = Status(code=rule.code, message=rule.message or "an internal error has occurred")
    queue_state.set_state(cloud, record, Q.CREATING)
    return operation


def _check_reservation(cloud: Cloud, spec: QueuedResource) -> None:
    known, requested = cloud.settings.reservations, spec.reservation_name
    # `reservations/-` means any reservation of the project.
    if requested and known is not None and short_name(requested) != "-" and short_name(requested) not in known:
        raise ApiError(5, f"Reservation not found: {requested}")


def _checked_ids(spec: NodeSpec, queued_id: str) -> list[str]:
    if spec.multislice_params is None:
        check_id(spec.node_id or "", "node_id")
    else:
        check_id(spec.multislice_params.node_id_prefix or queued_id, "multislice_params.node_id_prefix")
    return queue_state.node_ids(spec, queued_id)


def _validity(policy: QueueingPolicy | None, now: float) -> tuple[float, float | None]:
    """Return the emulated Unix seconds after and until which a queued resource may be provisioned."""
    if policy is None:
        return 0.0, None
    interval = policy.valid_interval
    start = policy.valid_after_time or (interval.start_time if interval else None)
    end = policy.valid_until_time or (interval.end_time if interval else None)
    after = parse_timestamp(start) if start else 0.0
    until = parse_timestamp(end) if end else None
    if policy.valid_after_duration:
        after = now + float(policy.valid_after_duration[:-1])
    if policy.valid_until_duration:
        until = now + float(policy.valid_until_duration[:-1])
    return after, until


def _get(call: Call) -> Message:
    return views.queued(_find(call))


def _list(call: Call) -> JsonObject:
    def show(record: QueuedRecord) -> JsonObject:
        return views.queued(record).to_json(enum_numbers=call.enum_numbers)

    return list_resources(call, "queuedResources", call.cloud.queued, show)


def _delete(call: Call) -> OperationRecord:
    """Begin to delete a queued resource; with `force`, its nodes first.

    Raises:
        ApiError: 404, 409 if it is being deleted already, or 400 if it has nodes and `force` is not set, or if it is
            being suspended.
    """
    cloud, force, record = call.cloud, call.flag("force"), _find(call)
    if record.state is Q.DELETING:
        raise ApiError(10, f"Resource '{record.name}' is being deleted by another operation.")
    if record.state is Q.SUSPENDING:
        raise precondition(
            f"Queued resource {short_name(record.name)} is in state SUSPENDING and cannot be deleted yet."
        )
    if not force and record.state not in _DELETABLE and cloud.nodes_of(record):
        raise precondition(
            f"Queued resource {short_name(record.name)} is in state {record.state.value}; delete its nodes first,"
            " or set force."
        )
    operation = operations.begin(cloud, "delete", record.name)
    operations.fail(cloud, record.operation, Status(code=1, message="The operation was cancelled: deleted."))
    record.operation = operation.name
    queue_state.begin_delete(cloud, record)
    return operation


def _reset(call: Call) -> JsonObject:
    """Begin to delete the nodes and queue again.

    Raises:
        ApiError: 404, or 400 in a state without nodes, or while it is being deleted.
    """
    call.body(Empty)
    record = _find(call)
    if record.state not in (Q.ACTIVE, Q.SUSPENDED, Q.FAILED):
        raise precondition(f"Cannot reset queued resource {short_name(record.name)} in state {record.state.value}.")
    operation = operations.begin(call.cloud, "reset", record.name)
    record.operation = operation.name
    queue_state.begin_reset(call.cloud, record)
    return views.operation(operation)


_COLLECTION = f"{LOCATION}/queuedResources"
_RESOURCE = f"{_COLLECTION}/{{id}}"
_CREATE = Method(
    "queuedResources.create", "POST", _COLLECTION, lambda call: _once(call, _create),
    frozenset({"queuedResourceId", "requestId"}),
)  # fmt: skip
METHODS = [
    Method("queuedResources.reset", "POST", f"{_RESOURCE}:reset", _reset),
    _CREATE,
    of_alpha(_CREATE),
    Method("queuedResources.list", "GET", _COLLECTION, _list, PAGE_PARAMETERS),
    Method("queuedResources.get", "GET", _RESOURCE, _get),
    Method("queuedResources.delete", "DELETE", _RESOURCE, lambda call: _once(call, _delete),
           frozenset({"force", "requestId"})),
]  # fmt: skip
