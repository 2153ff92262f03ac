"""What is in store for a node from the day that it is ready: events, and preemptions at random under a seed."""

from __future__ import annotations

import random
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from tpux_emulator.cloud.names import short
from tpux_emulator.faults.plans import Deed, Plan

if TYPE_CHECKING:
    from tpux_emulator.cloud.cloud import Cloud
    from tpux_emulator.cloud.records import NodeRecord

# A preemptible (not spot) node lives a day at most: "Preemptible TPUs", Cloud TPU documentation.
_PREEMPTIBLE_LIFE = 24 * 3600.0


def sow(cloud: Cloud, record: NodeRecord) -> None:
    """Plan how a node that has just become READY will be taken away, if it may be."""
    how = record.spec.scheduling_config
    if how and how.preemptible:
        _plan(cloud, record, Deed.TERMINATE, _PREEMPTIBLE_LIFE)
    rate = cloud.settings.preemptions_per_hour
    if record.spot and rate > 0:
        # One generator a node and life, so that the order in which nodes become ready changes nothing.
        chance = random.Random(f"{cloud.settings.seed} {record.name} {record.birth}")  # noqa: S311
        _plan(cloud, record, Deed.PREEMPT, chance.expovariate(rate / 3600.0), cloud.settings.preemption_notice)
    for event in cloud.settings.events:
        if fnmatchcase(short(record.name), event.node) and (event.lives is None or record.birth <= event.lives):
            then = Deed.PREEMPT if event.event == "preempt" else Deed.TERMINATE
            _plan(cloud, record, then, event.after, event.notice)


def _plan(cloud: Cloud, record: NodeRecord, then: Deed, after: float, notice: float = 0.0) -> None:
    plan = Plan(
        id=f"plan-{cloud.count('plan')}",
        at=cloud.clock.now() + after,
        deed=Deed.NOTICE,
        node=record.name,
        uid=record.uid,
        then=then,
        notice=notice,
    )
    cloud.plan(plan)
