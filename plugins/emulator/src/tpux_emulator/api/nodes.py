"""The API's methods on nodes: create, get, list, patch, stop, start, delete, getGuestAttributes."""

from __future__ import annotations

from collections.abc import Callable

from tpux_emulator.api.alpha import checked_node, of_alpha
from tpux_emulator.api.call import LOCATION, Call, Method, check_id
from tpux_emulator.api.paging import PAGE_PARAMETERS, list_resources
from tpux_emulator.cloud import answers, capacity, disks, node_state, operations, views
from tpux_emulator.cloud.cloud import Cloud
from tpux_emulator.cloud.fault_rules import Effect
from tpux_emulator.cloud.records import NodeRecord, OperationRecord, WorkerRecord, short_name
from tpux_emulator.errors import ApiError, Status, already_exists, invalid, not_found, precondition
from tpux_emulator.messages import Empty, GetGuestAttributesRequest, Node, NodeState, SchedulingConfig
from tpux_emulator.protojson import JsonObject, Message

# The fields that `updateMask` may name (reference of projects.locations.nodes.patch).
_PATCHABLE = {"description", "tags", "labels", "metadata", "network_config.enable_external_ips", "data_disks"}
_SSH_PORT = 22
_UNPATCHABLE_STATES = (NodeState.PREEMPTED, NodeState.TERMINATED, NodeState.DELETING)


def _find(call: Call) -> NodeRecord:
    """Return the node that the path names.

    Raises:
        ApiError: 404.
    """
    name = call.name("nodes")
    if name not in call.cloud.nodes:
        raise not_found(name)
    return call.cloud.nodes[name]


def _create(call: Call) -> JsonObject:
    """Begin to create a node.

    Raises:
        ApiError: 400 for a bad id or spec, 403 for an unknown zone, 409 if the name is taken, 429 above a quota.
    """
    cloud, spec = call.cloud, checked_node(call.body(Node, "node"), "node", alpha=call.alpha)
    name = f"{call.parent}/nodes/{check_id(call.query.get('nodeId', ''), 'node_id')}"
    cloud.catalog.check_zone(call.zone)
    check_spec(cloud, call.zone, spec)
    if name in cloud.nodes:
        raise already_exists(name)
    disks.require_detached(cloud, spec)
    capacity.check_quota(cloud, call.zone, [spec], spot=capacity.is_spot(spec), queued=False)
    capacity.reject_stockout(cloud, call.zone, name)
    operation = operations.begin(cloud, "create", name)
    record = node_state.add(cloud, name, spec, operation=operation.name)
    record.creation_error = _planned_error(cloud, record)
    cloud.save(record)
    return views.operation(operation)


def check_spec(cloud: Cloud, zone: str, spec: Node, *, slices: int = 1) -> None:
    """Check that a zone has a node like this.

    Args:
        cloud: the cloud.
        zone: the zone.
        spec: the node.
        slices: how many nodes like this are requested.

    Raises:
        ApiError: 400 with the field's name.
    """
    accelerator_type = cloud.catalog.type_of(spec, zone)
    disks.check(cloud, zone, spec, accelerator_type, slices=slices)
    if not spec.runtime_version:
        raise invalid('The "runtime_version" field is required.', "node.runtime_version")
    scheduling = spec.scheduling_config or SchedulingConfig()
    if scheduling.spot and scheduling.preemptible:
        raise invalid("A node cannot be both spot and preemptible.", "node.scheduling_config")


def _planned_error(cloud: Cloud, record: NodeRecord) -> Status | None:
    """Return the error that a fault rule gives this creation, if one does."""
    if rule := cloud.consume_rule(Effect.STOCKOUT, zone=record.zone, name=record.name):
        return capacity.stockout_status(record.zone, rule.form)
    if rule := cloud.consume_rule(Effect.FAIL, zone=record.zone, method="nodes.create", name=record.name):
        return Status(code=rule.code, message=rule.message or "an internal error has occurred")
    return None


def _get(call: Call) -> Message:
    return views.node(_find(call), call.cloud.catalog, call.cloud.clock.now())


def _list(call: Call) -> JsonObject:
    def show(record: NodeRecord) -> JsonObject:
        return views.node(record, call.cloud.catalog, call.cloud.clock.now()).to_json(enum_numbers=call.enum_numbers)

    return list_resources(call, "nodes", call.cloud.nodes, show)


def _patch(call: Call) -> JsonObject:
    """Begin to replace the fields in `updateMask`, such as all labels; the accounts of running workers follow.

    Raises:
        ApiError: 404, or 400 for a mask that is empty or names a field that cannot be changed.
    """
    cloud, change = call.cloud, call.body(Node, "node")
    record = _find(call)
    fields = [_snake_case(part.strip()) for part in call.query.get("updateMask", "").split(",") if part.strip()]
    if not fields:
        raise invalid('The "update_mask" field is required.', "update_mask")
    for field in fields:
        if field not in _PATCHABLE:
            raise invalid(f"Invalid update_mask: field '{field}' cannot be updated.", "update_mask")
    if record.state in _UNPATCHABLE_STATES:
        raise answers.error("wrong-state", verb="update", state=record.state.value)
    operation = operations.begin(cloud, "update", record.name)
    update = {field: getattr(change, field) for field in fields if "." not in field}
    if "network_config.enable_external_ips" in fields and change.network_config and record.spec.network_config:
        value = change.network_config.enable_external_ips
        update["network_config"] = record.spec.network_config.model_copy(update={"enable_external_ips": value})
    node_state.begin_update(cloud, record, operation.name, update)
    return views.operation(operation)


def _snake_case(text: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in text)


def _delete(call: Call) -> OperationRecord:
    """Begin to delete a node in any state.

    Raises:
        ApiError: 404, or 409 if it is being deleted already.
    """
    record = _find(call)
    if record.state is NodeState.DELETING:
        raise ApiError(10, f"Resource '{record.name}' is being deleted by another operation.")
    operation = operations.begin(call.cloud, "delete", record.name)
    node_state.begin_delete(call.cloud, record, operation.name)
    return operation


def _stop(call: Call) -> OperationRecord:
    """Begin to stop a node.

    Raises:
        ApiError: 404, or 400 if its state, its size or its queued resource forbids it.
    """
    record = _find(call)
    if len(record.workers) > 1:
        raise precondition(
            f"Cannot stop node {short_name(record.name)}: a TPU slice of several hosts cannot be stopped."
        )
    if record.queued_resource:
        raise precondition(f"Cannot stop node {short_name(record.name)}: it was created by a queued resource.")
    return _change_state(call, record, "stop", NodeState.READY, NodeState.STOPPING)


def _start(call: Call) -> OperationRecord:
    """Begin to start a stopped node.

    Raises:
        ApiError: 404, or 400 if it is not stopped.
    """
    return _change_state(call, _find(call), "start", NodeState.STOPPED, NodeState.STARTING)


def _change_state(call: Call, record: NodeRecord, verb: str, before: NodeState, after: NodeState) -> OperationRecord:
    if record.state is not before:
        raise answers.error("wrong-state", verb=verb, state=record.state.value)
    operation = operations.begin(call.cloud, verb, record.name)
    record.operation = operation.name
    node_state.set_state(call.cloud, record, after)
    return operation


def _with_empty_body(act: Callable[[Call], OperationRecord]) -> Callable[[Call], JsonObject]:
    def run(call: Call) -> JsonObject:
        call.body(Empty)
        return views.operation(act(call))

    return run


def _get_guest_attributes(call: Call) -> JsonObject:
    """Return what some or all workers published, their host keys above all: an entry per worker, in order.

    Raises:
        ApiError: 404, or 400 for a worker that the node does not have or a node that is not READY.
    """
    request = call.body(GetGuestAttributesRequest)
    record = _find(call)
    if record.state is not NodeState.READY:
        raise precondition(f"Node {short_name(record.name)} is in state {record.state.value}, not READY.")
    # gcloud sends one empty id for all workers.
    ids = [worker for worker in request.worker_ids or [] if worker]
    known = {str(worker.index): worker for worker in record.workers}
    if unknown := [worker for worker in ids if worker not in known]:
        raise invalid(f"Invalid worker id: {unknown[0]}", "worker_ids")
    selected = [known[worker] for worker in ids] if ids else record.workers
    port = call.cloud.backend.ssh_port or _SSH_PORT
    return {"guestAttributes": [_guest_attributes(worker, request.query_path or "", port) for worker in selected]}


def _guest_attributes(worker: WorkerRecord, query_path: str, ssh_port: int) -> JsonObject:
    # The guest environment of Google's images publishes the host keys and the host name; the emulator publishes for
    # tpux where its workers listen, if that is not where everybody expects it.
    published = {f"hostkeys/{kind}": key for kind, key in worker.host_keys.items()}
    published |= {"ssh/port": str(ssh_port)} if ssh_port != _SSH_PORT else {}
    published |= {"hostname/hostname": worker.hostname, **worker.guest_attributes}
    items: list[JsonObject] = []
    for path, value in published.items():
        namespace, _, key = path.partition("/")
        if query_path in ("", f"{namespace}/", namespace, path):
            items.append({"namespace": namespace, "key": key, "value": value})
    entry: JsonObject = {"queryPath": query_path} if query_path else {}
    return {**entry, "queryValue": {"items": list(items)}}


_NODES = f"{LOCATION}/nodes"
_NODE = f"{_NODES}/{{id}}"
_CREATE = Method("nodes.create", "POST", _NODES, _create, frozenset({"nodeId"}))
METHODS = [
    Method("nodes.getGuestAttributes", "POST", f"{_NODE}:getGuestAttributes", _get_guest_attributes),
    Method("nodes.stop", "POST", f"{_NODE}:stop", _with_empty_body(_stop)),
    Method("nodes.start", "POST", f"{_NODE}:start", _with_empty_body(_start)),
    _CREATE,
    of_alpha(_CREATE),
    Method("nodes.list", "GET", _NODES, _list, PAGE_PARAMETERS),
    Method("nodes.get", "GET", _NODE, _get),
    Method("nodes.delete", "DELETE", _NODE, _with_empty_body(_delete)),
    Method("nodes.patch", "PATCH", _NODE, _patch, frozenset({"updateMask"})),
]
