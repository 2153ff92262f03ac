"""Carries out what was planned for a node."""

from __future__ import annotations

import logging

from tpux_emulator.api.messages import NodeState
from tpux_emulator.cloud import node_life
from tpux_emulator.cloud.cloud import Cloud
from tpux_emulator.cloud.names import short
from tpux_emulator.cloud.records import NodeRecord
from tpux_emulator.faults.plans import Deed, Plan

log = logging.getLogger("tpux_emulator.faults")


async def carry_out(cloud: Cloud, plan: Plan) -> None:
    """Do what is planned, unless the node has gone or another has its name."""
    record = cloud.nodes.get(plan.node)
    if record is None or record.uid != plan.uid:
        return
    log.info("fault: %s node %s", plan.deed.value, short(plan.node))
    if plan.deed is Deed.NOTICE:
        await _notice(cloud, record, plan)
    elif plan.deed is Deed.PREEMPT:
        await node_life.end(cloud, record, NodeState.PREEMPTED)
    elif plan.deed is Deed.TERMINATE:
        await node_life.end(cloud, record, NodeState.TERMINATED)
    elif plan.deed is Deed.RESTORE:
        await cut(cloud, record, "", plan.workers)
    elif plan.deed is Deed.TRUTH:
        record.shown = None
        cloud.save(record)
    elif plan.deed is Deed.UNSTICK:
        record.stuck = False
        cloud.save(record)


async def _notice(cloud: Cloud, record: NodeRecord, plan: Plan) -> None:
    if plan.notice <= 0:
        await carry_out(cloud, plan.model_copy(update={"deed": plan.then}))
        return
    record.preempted = plan.then is Deed.PREEMPT
    cloud.save(record)
    at = cloud.clock.now() + plan.notice
    cloud.plan(plan.model_copy(update={"id": f"{plan.id}!", "deed": plan.then, "at": at}))
    await cloud.fleet.warn(record)


async def cut(cloud: Cloud, record: NodeRecord, how: str, workers: list[int]) -> None:
    """Cut workers of a node from the network, or restore them with an empty `how`; no numbers mean all."""
    for worker in record.workers:
        if not workers or worker.index in workers:
            await cloud.fleet.cut(record, worker, how)
            worker.cut = how
    cloud.save(record)
