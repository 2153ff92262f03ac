"""A queued resource's life: CREATING, ACCEPTED, WAITING_FOR_RESOURCES, PROVISIONING, ACTIVE, and its ends."""

from __future__ import annotations

import logging

from tpux_emulator.api.messages import Initiator, NodeState, QueuedState
from tpux_emulator.cloud import node_life, operations, queue
from tpux_emulator.cloud.cloud import Cloud
from tpux_emulator.cloud.names import short
from tpux_emulator.cloud.records import QueuedRecord
from tpux_emulator.errors import Status
from tpux_emulator.faults.rules import Effect

log = logging.getLogger("tpux_emulator.cloud")
Q = QueuedState
_PASSING = (Q.CREATING, Q.ACCEPTED, Q.WAITING_FOR_RESOURCES, Q.PROVISIONING, Q.SUSPENDING, Q.DELETING)
_LOST = (NodeState.PREEMPTED, NodeState.TERMINATED, NodeState.DELETING)
# How often a state is looked at that waits for the nodes; emulated seconds.
_LOOK = 0.2


def enter(cloud: Cloud, record: QueuedRecord, state: QueuedState) -> None:
    """Put a queued resource into a state; states that pass get the time when they do."""
    log.info("queued resource %s: %s -> %s", short(record.name), record.state.value, state.value)
    record.state = state
    delay = cloud.settings.delay(f"queued-resource.{state.value}") if state in _PASSING else _LOOK
    record.due = cloud.clock.now() + delay if state in (*_PASSING, Q.ACTIVE) else None
    cloud.save(record)


def begin_delete(cloud: Cloud, record: QueuedRecord) -> None:
    """Delete the nodes first, then the request."""
    for node in cloud.nodes_of(record):
        if node.state is not NodeState.DELETING:
            node_life.begin_delete(cloud, node, None)
    enter(cloud, record, Q.DELETING)


def begin_reset(cloud: Cloud, record: QueuedRecord) -> None:
    """Delete the nodes, then queue again."""
    for node in cloud.nodes_of(record):
        if node.state is not NodeState.DELETING:
            node_life.begin_delete(cloud, node, None)
    record.error = record.initiator = record.doomed = None
    record.valid_until = None
    enter(cloud, record, Q.ACCEPTED)


def suspend(cloud: Cloud, record: QueuedRecord, initiator: Initiator) -> None:
    """The nodes of a request are going away; whatever remains of them is deleted."""
    if record.state in (Q.SUSPENDING, Q.SUSPENDED, Q.DELETING, Q.FAILED):
        return
    record.initiator = initiator
    enter(cloud, record, Q.SUSPENDING)


def fail(cloud: Cloud, record: QueuedRecord, error: Status) -> None:
    """The request could not be served."""
    record.error = error
    operations.fail(cloud, record.operation, error)
    record.operation = None
    for node in cloud.nodes_of(record):
        if node.state is not NodeState.DELETING:
            node_life.begin_delete(cloud, node, None)
    enter(cloud, record, Q.FAILED)


async def step(cloud: Cloud, record: QueuedRecord) -> None:
    """Move a queued resource on, or look at it again later."""
    steps = {
        Q.CREATING: _accept,
        Q.ACCEPTED: _queue,
        Q.WAITING_FOR_RESOURCES: _provision,
        Q.PROVISIONING: _activate,
        Q.ACTIVE: _watch,
        Q.SUSPENDING: _suspended,
        Q.DELETING: _gone,
    }
    if record.state in steps:
        steps[record.state](cloud, record)


def _again(cloud: Cloud, record: QueuedRecord, after: float = _LOOK) -> None:
    record.due = cloud.clock.now() + after
    cloud.save(record)


def _accept(cloud: Cloud, record: QueuedRecord) -> None:
    enter(cloud, record, Q.ACCEPTED)
    operations.succeed(cloud, record.operation, record)
    record.operation = None
    cloud.save(record)


def _queue(cloud: Cloud, record: QueuedRecord) -> None:
    if cloud.clock.now() < record.valid_after or cloud.nodes_of(record):
        _again(cloud, record, max(_LOOK, min(record.valid_after - cloud.clock.now(), 60.0)))
        return
    enter(cloud, record, Q.WAITING_FOR_RESOURCES)
    if record.operation:  # a reset ends when the request is back in the queue
        operations.succeed(cloud, record.operation, record)
        record.operation = None
        cloud.save(record)


def _provision(cloud: Cloud, record: QueuedRecord) -> None:
    now = cloud.clock.now()
    if record.valid_until is not None and now >= record.valid_until:
        error = Status(code=4, message="The queued resource request expired: its 'valid until' time has passed.")
        fail(cloud, record, error)
    elif record.doomed is not None:
        fail(cloud, record, record.doomed)
    elif cloud.take_rule(Effect.STOCKOUT, zone=record.zone, name=record.name):
        wait = cloud.settings.delay("queued-resource.retry")
        _again(cloud, record, min(wait, record.valid_until - now) if record.valid_until else wait)
    else:
        for name in record.nodes:
            queue.add_node(cloud, record, name)
        enter(cloud, record, Q.PROVISIONING)


def _activate(cloud: Cloud, record: QueuedRecord) -> None:
    nodes = cloud.nodes_of(record)
    if len(nodes) < len(record.nodes):
        fail(cloud, record, Status(code=13, message="an internal error has occurred"))
    elif any(node.state in _LOST for node in nodes):
        _watch(cloud, record)
    elif all(node.state is NodeState.READY for node in nodes):
        enter(cloud, record, Q.ACTIVE)
    else:
        _again(cloud, record)


def _watch(cloud: Cloud, record: QueuedRecord) -> None:
    nodes = cloud.nodes_of(record)
    taken = any(node.state in (NodeState.PREEMPTED, NodeState.TERMINATED) for node in nodes)
    deleted = len(nodes) < len(record.nodes) or any(node.state is NodeState.DELETING for node in nodes)
    if taken or deleted:
        suspend(cloud, record, Initiator.SERVICE if taken else Initiator.USER)
    else:
        record.due = None
        cloud.save(record)


def _suspended(cloud: Cloud, record: QueuedRecord) -> None:
    for node in cloud.nodes_of(record):
        if node.state is not NodeState.DELETING:
            node_life.begin_delete(cloud, node, None)
    if cloud.nodes_of(record):
        _again(cloud, record)
    else:
        enter(cloud, record, Q.SUSPENDED)


def _gone(cloud: Cloud, record: QueuedRecord) -> None:
    if cloud.nodes_of(record):
        _again(cloud, record)
        return
    operations.succeed(cloud, record.operation, None)
    log.info("queued resource %s: gone", short(record.name))
    cloud.drop(record)
