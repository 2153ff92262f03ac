"""A node's life: one step at a time, in the order of the real service."""

from __future__ import annotations

import asyncio
import logging

from tpux import TpuxError
from tpux_emulator.api.messages import NodeState
from tpux_emulator.cloud import fate, operations
from tpux_emulator.cloud.cloud import Cloud
from tpux_emulator.cloud.names import short
from tpux_emulator.cloud.records import NodeRecord
from tpux_emulator.errors import Status
from tpux_emulator.faults.rules import Effect

log = logging.getLogger("tpux_emulator.cloud")
S = NodeState


def no_capacity(zone: str) -> Status:
    """The stockout that Google reports for a zone."""
    return Status(
        code=8,
        message=f'There is no more capacity in the zone "{zone}"; you can try in another zone where Cloud TPU Nodes'
        " are offered (see https://cloud.google.com/tpu/docs/regions) [EID: 0x1f2e3d4c5b6a7988]",
    )


def enter(cloud: Cloud, record: NodeRecord, state: NodeState) -> None:
    """Put a node into a state; states that pass get the time when they do."""
    log.info("node %s: %s -> %s", short(record.name), record.state.value, state.value)
    record.state = state
    passing = state in (S.CREATING, S.STARTING, S.STOPPING, S.DELETING, S.RESTARTING, S.REPAIRING)
    record.due = cloud.clock.now() + cloud.settings.delay(f"node.{state.value}") if passing else None
    cloud.save(record)


def begin_delete(cloud: Cloud, record: NodeRecord, operation: str | None) -> None:
    """Start deleting: what else was going on with the node is cancelled."""
    operations.fail(cloud, record.operation, Status(code=1, message="The operation was cancelled: node deleted."))
    record.operation, record.shown = operation, None
    enter(cloud, record, S.DELETING)
    _tell_queue(cloud, record)


def begin_patch(cloud: Cloud, record: NodeRecord, operation: str) -> None:
    """Bring the workers in line with the node's new metadata; the operation ends when they are."""

    async def follow() -> None:
        await asyncio.sleep(cloud.clock.real_seconds(cloud.settings.delay("node.patch")))
        if record.state is S.READY:
            await cloud.fleet.update_accounts(record)
        if rule := cloud.take_rule(Effect.FAIL, zone=record.zone, method="nodes.patch", name=record.name):
            operations.fail(cloud, operation, Status(code=rule.code, message=rule.message or "internal error"))
        else:
            operations.succeed(cloud, operation, record)

    cloud.spawn(follow())


async def step(cloud: Cloud, record: NodeRecord) -> None:
    """Move a node on whose time in its state is over."""
    if record.state is S.CREATING and record.doom is not None:
        operations.fail(cloud, record.operation, record.doom)
        await _vanish(cloud, record)
    elif record.state in (S.CREATING, S.STARTING, S.RESTARTING, S.REPAIRING):
        await _boot(cloud, record)
    elif record.state is S.STOPPING:
        await cloud.fleet.halt(record, keep_disks=True)
        _finish(cloud, record, S.STOPPED, "nodes.stop")
    elif record.state is S.DELETING:
        operation = record.operation
        await _vanish(cloud, record)
        operations.succeed(cloud, operation, None)


async def _boot(cloud: Cloud, record: NodeRecord) -> None:
    before = record.state
    try:
        await cloud.fleet.boot(record)
    except TpuxError as error:
        log.error("node %s: its workers did not start: %s", short(record.name), error)  # noqa: TRY400
        operations.fail(cloud, record.operation, Status(code=13, message=f"an internal error has occurred: {error}"))
        await _vanish(cloud, record)
        return
    if record.name not in cloud.nodes or record.state is not before:
        return  # deleted or preempted while it was booting; whoever did that halts it
    _finish(cloud, record, S.READY, "nodes.start")
    fate.sow(cloud, record)


def _finish(cloud: Cloud, record: NodeRecord, state: NodeState, method: str) -> None:
    operation, record.operation = record.operation, None
    enter(cloud, record, state)
    if rule := cloud.take_rule(Effect.FAIL, zone=record.zone, method=method, name=record.name):
        operations.fail(cloud, operation, Status(code=rule.code, message=rule.message or "internal error"))
    operations.succeed(cloud, operation, record)


async def _vanish(cloud: Cloud, record: NodeRecord) -> None:
    await cloud.fleet.halt(record, keep_disks=False)
    log.info("node %s: gone", short(record.name))
    cloud.drop(record)


async def end(cloud: Cloud, record: NodeRecord, state: NodeState) -> None:
    """Take a node away: PREEMPTED or TERMINATED. Its queued resource notices."""
    if record.state in (S.DELETING, S.PREEMPTED, S.TERMINATED):
        return
    operations.fail(cloud, record.operation, Status(code=10, message=f"The node was {state.value.lower()}."))
    record.operation, record.preempted = None, state is S.PREEMPTED
    enter(cloud, record, state)
    _tell_queue(cloud, record)
    await cloud.fleet.halt(record, keep_disks=False)


def _tell_queue(cloud: Cloud, record: NodeRecord) -> None:
    """A queued resource that is ACTIVE rests until something happens to one of its nodes."""
    queued = cloud.queued.get(record.queued_resource or "")
    if queued is not None and queued.due is None:
        queued.due = cloud.clock.now()
        cloud.save(queued)


async def resume(cloud: Cloud) -> None:
    """After the emulator's own restart: machines that should run, and do not, start again."""
    await cloud.fleet.open(list(cloud.nodes.values()))
    for record in list(cloud.nodes.values()):
        if record.state is S.READY:
            cloud.spawn(cloud.fleet.boot(record))
