"""The state machine of a node, with the transitions of the real service."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from tpux import TpuxError
from tpux_emulator.cloud import operations, preemption_model
from tpux_emulator.cloud.cloud import Cloud
from tpux_emulator.cloud.fault_rules import Effect
from tpux_emulator.cloud.records import NodeRecord, short_name, stable_number
from tpux_emulator.errors import Status
from tpux_emulator.messages import Node, NodeState

log = logging.getLogger("tpux_emulator.cloud")
S = NodeState
_TRANSIENT = (S.CREATING, S.STARTING, S.STOPPING, S.DELETING, S.RESTARTING, S.REPAIRING)


def add(cloud: Cloud, name: str, spec: Node, *, operation: str | None = None, queued: str | None = None) -> NodeRecord:
    """Add a new node to the cloud, in state CREATING.

    Args:
        cloud: the cloud.
        name: the full name of the node.
        spec: the node, as the request describes it.
        operation: the operation that creates it.
        queued: the queued resource that it belongs to.
    """
    zone = name.split("/")[3]
    incarnation = cloud.next_number(f"incarnations of {name}")
    accelerator_type = cloud.catalog.type_of(spec, zone)
    record = NodeRecord(
        name=name,
        spec=spec,
        accelerator_type=accelerator_type,
        uid=stable_number(f"{name} {incarnation} {cloud.clock.anchor}"),
        created=cloud.clock.now(),
        incarnation=incarnation,
        operation=operation,
        queued_resource=queued,
    )
    record.workers = cloud.backend.allocate_workers(record, cloud.catalog.workers(accelerator_type))
    record.due = cloud.clock.now() + cloud.settings.delay("node.CREATING")
    cloud.save(record)
    return record


def set_state(cloud: Cloud, record: NodeRecord, state: NodeState) -> None:
    """Enter a state; a transient one gets the time at which it ends."""
    log.info("node %s: %s -> %s", short_name(record.name), record.state.value, state.value)
    record.state = state
    record.due = cloud.clock.now() + cloud.settings.delay(f"node.{state.value}") if state in _TRANSIENT else None
    cloud.save(record)


def begin_delete(cloud: Cloud, record: NodeRecord, operation: str | None) -> None:
    """Start deleting a node; its pending operation is cancelled."""
    operations.fail(cloud, record.operation, Status(code=1, message="The operation was cancelled: node deleted."))
    record.operation, record.faked_state = operation, None
    set_state(cloud, record, S.DELETING)
    _wake_queued_resource(cloud, record)


def begin_update(cloud: Cloud, record: NodeRecord, operation: str, fields: Mapping[str, object]) -> None:
    """Replace fields after the delay `node.patch`, and update the accounts of running workers; then end the operation.

    Until then the old values are shown, so of two updates that are begun at once the second one undoes the first.
    """

    async def update() -> None:
        begun = cloud.clock.now()
        while (left := begun + cloud.settings.delay("node.patch") - cloud.clock.now()) > 0:
            await asyncio.sleep(min(cloud.clock.real_seconds(left), 0.2))  # the delay may be changed meanwhile
        if rule := cloud.consume_rule(Effect.FAIL, zone=record.zone, method="nodes.patch", name=record.name):
            operations.fail(cloud, operation, Status(code=rule.code, message=rule.message or "internal error"))
            return
        if not cloud.exists(record):
            operations.fail(cloud, operation, Status(code=1, message="The operation was cancelled: node deleted."))
            return
        record.spec = record.spec.model_copy(update=dict(fields))
        cloud.save(record)
        if record.state is S.READY:
            await cloud.backend.update_accounts(record)
        operations.succeed(cloud, operation, record)

    cloud.spawn(update())


async def advance(cloud: Cloud, record: NodeRecord) -> None:
    """Leave a transient state whose time is over."""
    if record.state is S.CREATING and record.creation_error is not None:
        await _remove(cloud, record)
        operations.fail(cloud, record.operation, record.creation_error)
    elif record.state in (S.CREATING, S.STARTING, S.RESTARTING, S.REPAIRING):
        await _boot(cloud, record)
    elif record.state is S.STOPPING:
        await cloud.backend.stop_all(record, keep_disks=True)
        if cloud.exists(record) and record.state is S.STOPPING:  # else deleted or preempted meanwhile
            _complete(cloud, record, S.STOPPED, "nodes.stop")
    elif record.state is S.DELETING:
        operation = record.operation
        await _remove(cloud, record)
        operations.succeed(cloud, operation, None)


async def _boot(cloud: Cloud, record: NodeRecord) -> None:
    before = record.state
    try:
        await cloud.backend.boot(record)
    except TpuxError as error:
        log.error("node %s: its workers did not start: %s", short_name(record.name), error)  # noqa: TRY400
        await _remove(cloud, record)
        operations.fail(cloud, record.operation, Status(code=13, message=f"an internal error has occurred: {error}"))
        return
    if not cloud.exists(record) or record.state is not before:
        return  # deleted or preempted while it was booting, which also stops its workers
    _complete(cloud, record, S.READY, "nodes.start")
    preemption_model.schedule_preemption(cloud, record)


def _complete(cloud: Cloud, record: NodeRecord, state: NodeState, method: str) -> None:
    operation, record.operation = record.operation, None
    set_state(cloud, record, state)
    if rule := cloud.consume_rule(Effect.FAIL, zone=record.zone, method=method, name=record.name):
        operations.fail(cloud, operation, Status(code=rule.code, message=rule.message or "internal error"))
    operations.succeed(cloud, operation, record)


async def _remove(cloud: Cloud, record: NodeRecord) -> None:
    """Stop a node's workers and delete it. Its operation is completed afterwards: its name is free then."""
    await cloud.backend.stop_all(record, keep_disks=False)
    log.info("node %s: deleted", short_name(record.name))
    cloud.delete(record)


async def reclaim(cloud: Cloud, record: NodeRecord, state: NodeState) -> None:
    """Stop a node's workers permanently and enter PREEMPTED or TERMINATED."""
    if record.state in (S.DELETING, S.PREEMPTED, S.TERMINATED):
        return
    operations.fail(cloud, record.operation, Status(code=10, message=f"The node was {state.value.lower()}."))
    record.operation, record.preempted = None, state is S.PREEMPTED
    set_state(cloud, record, state)
    _wake_queued_resource(cloud, record)
    await cloud.backend.stop_all(record, keep_disks=False)


def _wake_queued_resource(cloud: Cloud, record: NodeRecord) -> None:
    # An ACTIVE queued resource has no due time: it advances only when one of its nodes changes.
    queued = cloud.queued.get(record.queued_resource or "")
    if queued is not None and queued.due is None:
        queued.due = cloud.clock.now()
        cloud.save(queued)


async def restore_workers(cloud: Cloud) -> None:
    """Adopt the workers that outlived the previous emulator process, and boot those of READY nodes that did not."""
    await cloud.backend.adopt(list(cloud.nodes.values()))
    for record in list(cloud.nodes.values()):
        if record.state is S.READY:
            cloud.spawn(cloud.backend.boot(record))
