"""What clients may ask of nodes: create, patch, stop, start, delete, guest attributes."""

from __future__ import annotations

from tpux_emulator.api.messages import Node, NodeState, SchedulingConfig
from tpux_emulator.cloud import node_life, operations
from tpux_emulator.cloud.cloud import Cloud
from tpux_emulator.cloud.names import check_id, number_for, short
from tpux_emulator.cloud.records import NodeRecord, OperationRecord
from tpux_emulator.errors import ApiError, Status, already_exists, invalid, not_found, precondition
from tpux_emulator.faults.rules import Effect

_GONE = (NodeState.PREEMPTED, NodeState.TERMINATED)
# What `updateMask` may name (reference of projects.locations.nodes.patch).
PATCHABLE = {"description", "tags", "labels", "metadata", "network_config.enable_external_ips", "data_disks"}


def get(cloud: Cloud, name: str) -> NodeRecord:
    """The node of that name.

    Raises:
        ApiError: 404.
    """
    if name not in cloud.nodes:
        raise not_found(name)
    return cloud.nodes[name]


def create(cloud: Cloud, parent: str, node_id: str, spec: Node) -> OperationRecord:
    """Begin to make a node.

    Raises:
        ApiError: 400 for a bad id or accelerator, 409 where the name is taken, 429 above the quota.
    """
    name = f"{parent}/nodes/{check_id(node_id, 'node_id')}"
    zone = parent.split("/")[3]
    cloud.offer.check_zone(zone)
    check(cloud, zone, spec)
    if name in cloud.nodes:
        raise already_exists(name)
    check_quota(cloud, zone, [spec])
    operation = operations.begin(cloud, "create", name)
    record = add(cloud, name, spec, operation=operation.name)
    record.doom = _doom(cloud, record)
    cloud.save(record)
    return operation


def check(cloud: Cloud, zone: str, spec: Node) -> None:
    """Refuse a node that no zone could give.

    Raises:
        ApiError: 400 with the field's name.
    """
    cloud.offer.type_of(spec, zone)
    if not spec.runtime_version:
        raise invalid('The "runtime_version" field is required.', "node.runtime_version")
    how = spec.scheduling_config or SchedulingConfig()
    if how.spot and how.preemptible:
        raise invalid("A node cannot be both spot and preemptible.", "node.scheduling_config")


def check_quota(cloud: Cloud, zone: str, specs: list[Node]) -> None:
    """Refuse what a quota rule does not leave room for; whatever is not deleted counts, preempted nodes too.

    Raises:
        ApiError: 429.
    """
    for spec in specs:
        generation = cloud.offer.generation(cloud.offer.type_of(spec, zone))
        rule = cloud.find_rule(Effect.QUOTA, zone=zone)
        if rule is None or rule.generation not in ("", generation):
            continue
        asked = sum(_chips(cloud, cloud.offer.type_of(other, zone)) for other in specs)
        held = sum(
            _chips(cloud, node.accelerator_type)
            for node in cloud.nodes.values()
            if node.zone == zone and cloud.offer.generation(node.accelerator_type) == generation
        )
        if held + asked > rule.limit:
            cloud.take_rule(Effect.QUOTA, zone=zone)
            name = f"TPU{generation.upper()}PerProjectPerZoneForTPUAPI"
            default = f"Quota limit '{name}' has been exceeded. Limit: {rule.limit} in zone {zone}."
            raise ApiError(8, rule.message or default)


def _chips(cloud: Cloud, accelerator_type: str) -> int:
    generation, _, number = accelerator_type.partition("-")
    return int(number) // cloud.offer.generations[generation].units_per_chip


def _doom(cloud: Cloud, record: NodeRecord) -> Status | None:
    """The error that a standing fault has in store for this creation."""
    if cloud.take_rule(Effect.STOCKOUT, zone=record.zone, name=record.name):
        return node_life.no_capacity(record.zone)
    if rule := cloud.take_rule(Effect.FAIL, zone=record.zone, method="nodes.create", name=record.name):
        return Status(code=rule.code, message=rule.message or "an internal error has occurred")
    return None


def add(cloud: Cloud, name: str, spec: Node, *, operation: str | None = None, queued: str | None = None) -> NodeRecord:
    """Put a new node, in CREATING, into the cloud."""
    zone = name.split("/")[3]
    birth = cloud.count(f"births of {name}")
    accelerator_type = cloud.offer.type_of(spec, zone)
    record = NodeRecord(
        name=name,
        spec=spec,
        accelerator_type=accelerator_type,
        uid=number_for(f"{name} {birth} {cloud.clock.anchor}"),
        created=cloud.clock.now(),
        birth=birth,
        operation=operation,
        queued_resource=queued,
    )
    record.workers = cloud.fleet.place(record, cloud.offer.workers(accelerator_type))
    record.due = cloud.clock.now() + cloud.settings.delay("node.CREATING")
    cloud.save(record)
    return record


def delete(cloud: Cloud, name: str) -> OperationRecord:
    """Begin to delete a node, whatever its state.

    Raises:
        ApiError: 404, or 409 while it is being deleted already.
    """
    record = get(cloud, name)
    if record.state is NodeState.DELETING:
        raise ApiError(10, f"Resource '{name}' is being deleted by another operation.")
    operation = operations.begin(cloud, "delete", name)
    node_life.begin_delete(cloud, record, operation.name)
    return operation


def stop(cloud: Cloud, name: str) -> OperationRecord:
    """Begin to stop a node.

    Raises:
        ApiError: 404, or 400 where its state, its size or its queued resource forbids it.
    """
    record = get(cloud, name)
    if len(record.workers) > 1:
        raise precondition(f"Cannot stop node {short(name)}: a TPU slice of several hosts cannot be stopped.")
    if record.queued_resource:
        raise precondition(f"Cannot stop node {short(name)}: it was created by a queued resource.")
    return _turn(cloud, record, "stop", NodeState.READY, NodeState.STOPPING)


def start(cloud: Cloud, name: str) -> OperationRecord:
    """Begin to start a stopped node.

    Raises:
        ApiError: 404, or 400 where it is not stopped.
    """
    return _turn(cloud, get(cloud, name), "start", NodeState.STOPPED, NodeState.STARTING)


def _turn(cloud: Cloud, record: NodeRecord, verb: str, before: NodeState, after: NodeState) -> OperationRecord:
    if record.state is not before:
        raise precondition(f"Cannot {verb} node {short(record.name)} in state {record.state.value}.")
    operation = operations.begin(cloud, verb, record.name)
    record.operation = operation.name
    node_life.enter(cloud, record, after)
    return operation


def patch(cloud: Cloud, name: str, mask: str, change: Node) -> OperationRecord:
    """Change labels, metadata, tags or description; running workers follow.

    Args:
        cloud: where.
        name: the node's full name.
        mask: fields, separated by commas, in either spelling.
        change: the new values; all but the masked fields is ignored.

    Raises:
        ApiError: 404, or 400 for a mask that is empty or names what cannot be changed.
    """
    record = get(cloud, name)
    fields = [_snake(part.strip()) for part in mask.split(",") if part.strip()]
    if not fields:
        raise invalid('The "update_mask" field is required.', "update_mask")
    for field in fields:
        if field not in PATCHABLE:
            raise invalid(f"Invalid update_mask: field '{field}' cannot be updated.", "update_mask")
    if record.state in _GONE or record.state is NodeState.DELETING:
        raise precondition(f"Cannot update node {short(name)} in state {record.state.value}.")
    operation = operations.begin(cloud, "update", name)
    update = {field: getattr(change, field) for field in fields if "." not in field}
    if "network_config.enable_external_ips" in fields and change.network_config and record.spec.network_config:
        value = change.network_config.enable_external_ips
        update["network_config"] = record.spec.network_config.model_copy(update={"enable_external_ips": value})
    record.spec = record.spec.model_copy(update=update)
    cloud.save(record)
    node_life.begin_patch(cloud, record, operation.name)
    return operation


def _snake(text: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in text)
