"""The state machine of a queued resource, with the transitions of the real service."""

from __future__ import annotations

import logging

from tpux_emulator.cloud import node_state, operations
from tpux_emulator.cloud.cloud import Cloud
from tpux_emulator.cloud.fault_rules import Effect
from tpux_emulator.cloud.records import QueuedRecord, short_name
from tpux_emulator.errors import Status
from tpux_emulator.messages import Initiator, NodeSpec, NodeState, QueuedState, SchedulingConfig

log = logging.getLogger("tpux_emulator.cloud")
Q = QueuedState
_TRANSIENT = (Q.CREATING, Q.ACCEPTED, Q.WAITING_FOR_RESOURCES, Q.PROVISIONING, Q.SUSPENDING, Q.DELETING)
_LOST = (NodeState.PREEMPTED, NodeState.TERMINATED, NodeState.DELETING)
# How often a state that waits for nodes is checked, in emulated seconds.
_POLL_INTERVAL = 0.2


def node_ids(spec: NodeSpec, queued_id: str) -> list[str]:
    """Return the ids of the nodes that a spec of a queued resource describes.

    Args:
        spec: one node, or several of one kind (`multislice_params`).
        queued_id: the queued resource's id, which is the default prefix.
    """
    if spec.multislice_params is not None:
        prefix = spec.multislice_params.node_id_prefix or queued_id
        return [f"{prefix}-{number}" for number in range(spec.multislice_params.node_count)]
    return [spec.node_id or ""]


def set_state(cloud: Cloud, record: QueuedRecord, state: QueuedState) -> None:
    """Enter a state; a transient one gets the time at which it ends."""
    log.info("queued resource %s: %s -> %s", short_name(record.name), record.state.value, state.value)
    record.state = state
    delay = cloud.settings.delay(f"queued-resource.{state.value}") if state in _TRANSIENT else _POLL_INTERVAL
    record.due = cloud.clock.now() + delay if state in (*_TRANSIENT, Q.ACTIVE) else None
    cloud.save(record)


def begin_delete(cloud: Cloud, record: QueuedRecord) -> None:
    """Start deleting the nodes, then the queued resource."""
    _delete_nodes(cloud, record)
    set_state(cloud, record, Q.DELETING)


def begin_reset(cloud: Cloud, record: QueuedRecord) -> None:
    """Start deleting the nodes, then queue again."""
    _delete_nodes(cloud, record)
    record.error = record.initiator = record.creation_error = None
    record.valid_until = None
    set_state(cloud, record, Q.ACCEPTED)


def suspend(cloud: Cloud, record: QueuedRecord, initiator: Initiator) -> None:
    """Start suspending: the remaining nodes will be deleted."""
    if record.state in (Q.SUSPENDING, Q.SUSPENDED, Q.DELETING, Q.FAILED):
        return
    record.initiator = initiator
    set_state(cloud, record, Q.SUSPENDING)


def fail(cloud: Cloud, record: QueuedRecord, error: Status) -> None:
    """Enter FAILED, with its operation and its nodes."""
    record.error = error
    operations.fail(cloud, record.operation, error)
    record.operation = None
    _delete_nodes(cloud, record)
    set_state(cloud, record, Q.FAILED)


def advance(cloud: Cloud, record: QueuedRecord) -> None:
    """Make the next transition, or schedule the next check."""
    transitions = {
        Q.CREATING: _accept,
        Q.ACCEPTED: _queue,
        Q.WAITING_FOR_RESOURCES: _provision,
        Q.PROVISIONING: _activate,
        Q.ACTIVE: _check_nodes,
        Q.SUSPENDING: _finish_suspending,
        Q.DELETING: _finish_deleting,
    }
    if record.state in transitions:
        transitions[record.state](cloud, record)


def _check_later(cloud: Cloud, record: QueuedRecord, after: float = _POLL_INTERVAL) -> None:
    record.due = cloud.clock.now() + after
    cloud.save(record)


def _accept(cloud: Cloud, record: QueuedRecord) -> None:
    set_state(cloud, record, Q.ACCEPTED)
    operations.succeed(cloud, record.operation, record)
    record.operation = None
    cloud.save(record)


def _queue(cloud: Cloud, record: QueuedRecord) -> None:
    if cloud.clock.now() < record.valid_after or cloud.nodes_of(record):
        _check_later(cloud, record, max(_POLL_INTERVAL, min(record.valid_after - cloud.clock.now(), 60.0)))
        return
    set_state(cloud, record, Q.WAITING_FOR_RESOURCES)
    if record.operation:  # a reset completes when the resource is queued again
        operations.succeed(cloud, record.operation, record)
        record.operation = None
        cloud.save(record)


def _provision(cloud: Cloud, record: QueuedRecord) -> None:
    now = cloud.clock.now()
    if record.valid_until is not None and now >= record.valid_until:
        error = Status(code=4, message="The queued resource request expired: its 'valid until' time has passed.")
        fail(cloud, record, error)
    elif record.creation_error is not None:
        fail(cloud, record, record.creation_error)
    elif cloud.consume_rule(Effect.STOCKOUT, zone=record.zone, name=record.name):
        wait = cloud.settings.delay("queued-resource.retry")
        _check_later(cloud, record, min(wait, record.valid_until - now) if record.valid_until else wait)
    else:
        for name in record.nodes:
            _add_node(cloud, record, name)
        set_state(cloud, record, Q.PROVISIONING)


def _add_node(cloud: Cloud, record: QueuedRecord, name: str) -> None:
    assert record.spec.tpu is not None  # noqa: S101  create rejects it
    queued_id = short_name(record.name)
    given = next(spec for spec in record.spec.tpu.node_spec if short_name(name) in node_ids(spec, queued_id))
    scheduling = given.node.scheduling_config or SchedulingConfig()
    # The queued resource's tier and reservation apply to all of its nodes.
    scheduling = SchedulingConfig(
        spot=True if record.spec.spot is not None else scheduling.spot,
        preemptible=scheduling.preemptible,
        reserved=True if record.spec.reservation_name else scheduling.reserved,
    )
    spec = given.node.model_copy(update={"scheduling_config": scheduling})
    node = node_state.add(cloud, name, spec, queued=record.name)
    node.multislice = given.multislice_params is not None
    cloud.save(node)


def _activate(cloud: Cloud, record: QueuedRecord) -> None:
    nodes = cloud.nodes_of(record)
    if len(nodes) < len(record.nodes):
        fail(cloud, record, Status(code=13, message="an internal error has occurred"))
    elif any(node.state in _LOST for node in nodes):
        _check_nodes(cloud, record)
    elif all(node.state is NodeState.READY for node in nodes):
        set_state(cloud, record, Q.ACTIVE)
    else:
        _check_later(cloud, record)


def _check_nodes(cloud: Cloud, record: QueuedRecord) -> None:
    """Suspend the queued resource if one of its nodes is lost; else wait until a node changes."""
    nodes = cloud.nodes_of(record)
    reclaimed = any(node.state in (NodeState.PREEMPTED, NodeState.TERMINATED) for node in nodes)
    deleted = len(nodes) < len(record.nodes) or any(node.state is NodeState.DELETING for node in nodes)
    if reclaimed or deleted:
        suspend(cloud, record, Initiator.SERVICE if reclaimed else Initiator.USER)
    else:
        record.due = None
        cloud.save(record)


def _finish_suspending(cloud: Cloud, record: QueuedRecord) -> None:
    _delete_nodes(cloud, record)
    if cloud.nodes_of(record):
        _check_later(cloud, record)
    else:
        set_state(cloud, record, Q.SUSPENDED)


def _finish_deleting(cloud: Cloud, record: QueuedRecord) -> None:
    if cloud.nodes_of(record):
        _check_later(cloud, record)
        return
    operations.succeed(cloud, record.operation, None)
    log.info("queued resource %s: deleted", short_name(record.name))
    cloud.delete(record)


def _delete_nodes(cloud: Cloud, record: QueuedRecord) -> None:
    for node in cloud.nodes_of(record):
        if node.state is not NodeState.DELETING:
            node_state.begin_delete(cloud, node, None)
