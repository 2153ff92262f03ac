"""Applies scheduled faults when they are due."""

from __future__ import annotations

import logging

from tpux_emulator.clock import format_timestamp
from tpux_emulator.cloud import node_state
from tpux_emulator.cloud.cloud import Cloud
from tpux_emulator.cloud.records import FaultKind, NodeRecord, ScheduledFault, short_name
from tpux_emulator.messages import NodeState

log = logging.getLogger("tpux_emulator.faults")


async def apply_scheduled_fault(cloud: Cloud, fault: ScheduledFault) -> None:
    """Apply a fault, unless its node has been deleted, or replaced by another of the same name."""
    record = cloud.nodes.get(fault.node)
    if record is None or record.uid != fault.uid:
        return
    log.info("fault: %s node %s", fault.kind.value, short_name(fault.node))
    if fault.kind is FaultKind.NOTICE:
        await _give_notice(cloud, record, fault)
    elif fault.kind is FaultKind.ANNOUNCE:
        record.maintenance = cloud.clock.now() + fault.notice
        cloud.save(record)
        cloud.schedule(
            fault.model_copy(update={"id": f"{fault.id}-window", "kind": fault.then, "at": record.maintenance})
        )
    elif fault.kind is FaultKind.SYMPTOM:
        now = format_timestamp(cloud.clock.now())
        record.symptoms.append({"createTime": now, "symptomType": fault.symptom, "workerId": "0"})
        cloud.save(record)
    elif fault.kind is FaultKind.PREEMPT:
        await node_state.reclaim(cloud, record, NodeState.PREEMPTED)
    elif fault.kind is FaultKind.TERMINATE:
        await node_state.reclaim(cloud, record, NodeState.TERMINATED)
    elif fault.kind is FaultKind.RESTORE:
        await cut(cloud, record, "", fault.workers)
    elif fault.kind is FaultKind.SHOW_REAL_STATE:
        record.faked_state = None
        cloud.save(record)
    elif fault.kind is FaultKind.UNFREEZE:
        record.frozen = False
        cloud.save(record)


async def _give_notice(cloud: Cloud, record: NodeRecord, fault: ScheduledFault) -> None:
    if fault.notice <= 0:
        await apply_scheduled_fault(cloud, fault.model_copy(update={"kind": fault.then}))
        return
    record.preempted = fault.then is FaultKind.PREEMPT
    cloud.save(record)
    at = cloud.clock.now() + fault.notice
    cloud.schedule(fault.model_copy(update={"id": f"{fault.id}-after-notice", "kind": fault.then, "at": at}))
    await cloud.backend.send_notice(record)


async def cut(cloud: Cloud, record: NodeRecord, how: str, workers: list[int]) -> None:
    """Cut workers of a node from the network, or restore them.

    Args:
        cloud: the cloud.
        record: the node.
        how: `hang` or `refuse`; empty restores.
        workers: their numbers; empty means all.
    """
    for worker in record.workers:
        if not workers or worker.index in workers:
            await cloud.backend.cut(record, worker, how)
            worker.cut = how
    cloud.save(record)
