"""What clients may ask of queued resources: create, delete, reset."""

from __future__ import annotations

from tpux_emulator.api.messages import NodeSpec, QueuedResource, QueuedState, QueueingPolicy, SchedulingConfig
from tpux_emulator.clock import seconds_of
from tpux_emulator.cloud import nodes, operations, queue_life
from tpux_emulator.cloud.cloud import Cloud
from tpux_emulator.cloud.names import check_id, short
from tpux_emulator.cloud.records import NodeRecord, OperationRecord, QueuedRecord
from tpux_emulator.errors import ApiError, Status, already_exists, invalid, not_found, precondition
from tpux_emulator.faults.rules import Effect

Q = QueuedState
# A queued resource in these may be deleted without `force` (reference of queuedResources.delete).
_FREE = (Q.CREATING, Q.ACCEPTED, Q.WAITING_FOR_RESOURCES, Q.FAILED, Q.SUSPENDED)


def get(cloud: Cloud, name: str) -> QueuedRecord:
    """The queued resource of that name.

    Raises:
        ApiError: 404.
    """
    if name not in cloud.queued:
        raise not_found(name)
    return cloud.queued[name]


def create(cloud: Cloud, parent: str, queued_id: str, spec: QueuedResource) -> OperationRecord:
    """Put a request into the queue.

    Raises:
        ApiError: 400 for a mistake in it, 404 for a reservation that is not there, 409 where a name is taken,
            429 above the quota.
    """
    name = f"{parent}/queuedResources/{check_id(queued_id, 'queued_resource_id')}"
    zone = parent.split("/")[3]
    cloud.offer.check_zone(zone)
    if spec.tpu is None:
        raise invalid('The "tpu" field is required.', "queued_resource.tpu")
    if spec.spot is not None and spec.guaranteed is not None:
        raise invalid("Only one tier can be set: spot or guaranteed.", "queued_resource.tier")
    _check_reservation(cloud, spec)
    for each in spec.tpu.node_spec:
        nodes.check(cloud, zone, each.node)
    if name in cloud.queued:
        raise already_exists(name)
    wanted = [f"{parent}/nodes/{node_id}" for each in spec.tpu.node_spec for node_id in _node_ids(each, queued_id)]
    for node in wanted:
        if node in cloud.nodes or any(node in other.nodes for other in cloud.queued.values()):
            raise already_exists(node)
    nodes.check_quota(cloud, zone, [each.node for each in spec.tpu.node_spec for _ in _node_ids(each, queued_id)])
    operation = operations.begin(cloud, "create", name)
    record = QueuedRecord(name=name, spec=spec, created=cloud.clock.now(), nodes=wanted, operation=operation.name)
    record.valid_after, record.valid_until = _window(spec.queueing_policy, record.created)
    if rule := cloud.take_rule(Effect.FAIL, zone=zone, method="queuedResources.create", name=name):
        record.doomed = Status(code=rule.code, message=rule.message or "an internal error has occurred")
    queue_life.enter(cloud, record, Q.CREATING)
    return operation


def _check_reservation(cloud: Cloud, spec: QueuedResource) -> None:
    known, asked = cloud.settings.reservations, spec.reservation_name
    # `reservations/-` means any reservation of the project.
    if asked and known is not None and short(asked) != "-" and short(asked) not in known:
        raise ApiError(5, f"Reservation not found: {asked}")


def _node_ids(spec: NodeSpec, queued_id: str) -> list[str]:
    if spec.multislice_params is not None:
        prefix = spec.multislice_params.node_id_prefix or queued_id
        check_id(prefix, "multislice_params.node_id_prefix")
        return [f"{prefix}-{number}" for number in range(spec.multislice_params.node_count)]
    return [check_id(spec.node_id or "", "node_id")]


def _window(policy: QueueingPolicy | None, now: float) -> tuple[float, float | None]:
    if policy is None:
        return 0.0, None
    interval = policy.valid_interval
    start = policy.valid_after_time or (interval.start_time if interval else None)
    end = policy.valid_until_time or (interval.end_time if interval else None)
    after = seconds_of(start) if start else 0.0
    until = seconds_of(end) if end else None
    if policy.valid_after_duration:
        after = now + float(policy.valid_after_duration[:-1])
    if policy.valid_until_duration:
        until = now + float(policy.valid_until_duration[:-1])
    return after, until


def node_spec(record: QueuedRecord, name: str) -> tuple[NodeSpec, SchedulingConfig]:
    """Which of the request's specs a node comes from, and how it is paid for."""
    assert record.spec.tpu is not None  # noqa: S101  create refuses it
    queued_id = short(record.name)
    specs = (each for each in record.spec.tpu.node_spec if short(name) in _node_ids(each, queued_id))
    given = next(specs)
    how = given.node.scheduling_config or SchedulingConfig()
    paid = SchedulingConfig(
        spot=True if record.spec.spot is not None else how.spot,
        preemptible=how.preemptible,
        reserved=True if record.spec.reservation_name else how.reserved,
    )
    return given, paid


def add_node(cloud: Cloud, record: QueuedRecord, name: str) -> NodeRecord:
    """Make one of the nodes that a queued resource stands for."""
    given, paid = node_spec(record, name)
    spec = given.node.model_copy(update={"scheduling_config": paid})
    node = nodes.add(cloud, name, spec, queued=record.name)
    node.multislice = given.multislice_params is not None
    cloud.save(node)
    return node


def delete(cloud: Cloud, name: str, *, force: bool) -> OperationRecord:
    """Begin to delete a queued resource; with `force` its nodes first.

    Raises:
        ApiError: 404, or 400 where it has nodes and `force` is not set, or it is suspending.
    """
    record = get(cloud, name)
    if record.state is Q.DELETING:
        raise ApiError(10, f"Resource '{name}' is being deleted by another operation.")
    if record.state is Q.SUSPENDING:
        raise precondition(f"Queued resource {short(name)} is in state SUSPENDING and cannot be deleted yet.")
    if not force and record.state not in _FREE and cloud.nodes_of(record):
        raise precondition(
            f"Queued resource {short(name)} is in state {record.state.value}; delete its nodes first, or set force."
        )
    operation = operations.begin(cloud, "delete", name)
    operations.fail(cloud, record.operation, Status(code=1, message="The operation was cancelled: deleted."))
    record.operation = operation.name
    queue_life.begin_delete(cloud, record)
    return operation


def reset(cloud: Cloud, name: str) -> OperationRecord:
    """Give up the nodes and queue again.

    Raises:
        ApiError: 404, or 400 where it still waits or is on its way out.
    """
    record = get(cloud, name)
    if record.state not in (Q.ACTIVE, Q.SUSPENDED, Q.FAILED):
        raise precondition(f"Cannot reset queued resource {short(name)} in state {record.state.value}.")
    operation = operations.begin(cloud, "reset", name)
    record.operation = operation.name
    queue_life.begin_reset(cloud, record)
    return operation
