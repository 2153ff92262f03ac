"""When nodes are preempted or terminated: at random under a seed, by the scenario's events, and after 24 hours."""

from __future__ import annotations

import random
from fnmatch import fnmatchcase

from tpux_emulator.cloud.cloud import Cloud
from tpux_emulator.cloud.records import FaultKind, NodeRecord, ScheduledFault, short_name

# A preemptible (not spot) node is terminated after 24 hours: "Preemptible TPUs", Cloud TPU documentation.
_PREEMPTIBLE_LIFETIME = 24 * 3600.0


def schedule_preemption(cloud: Cloud, record: NodeRecord) -> None:
    """Schedule the preemptions and terminations of a node that has just become READY."""
    scheduling = record.spec.scheduling_config
    if scheduling and scheduling.preemptible:
        schedule_reclaim(cloud, record, FaultKind.TERMINATE, _PREEMPTIBLE_LIFETIME)
    queued = cloud.queued.get(record.queued_resource or "")
    run = queued.spec.run_duration if queued else None
    if run and run.max_run_duration:
        schedule_reclaim(cloud, record, FaultKind.PREEMPT, float(run.max_run_duration[:-1]))
    rate = cloud.settings.preemptions_per_hour
    if record.spot and rate > 0:
        # A generator for each node and incarnation, so that the order in which nodes become READY does not matter.
        rng = random.Random(f"{cloud.settings.seed} {record.name} {record.incarnation}")  # noqa: S311
        after = rng.expovariate(rate / 3600.0)
        schedule_reclaim(cloud, record, FaultKind.PREEMPT, after, cloud.settings.preemption_notice)
    for event in cloud.settings.events:
        if fnmatchcase(short_name(record.name), event.node) and (
            event.lives is None or record.incarnation <= event.lives
        ):
            if event.event == "symptom":
                schedule_symptom(cloud, record, event.symptom, event.after)
                continue
            then = FaultKind.PREEMPT if event.event == "preempt" else FaultKind.TERMINATE
            schedule_reclaim(cloud, record, then, event.after, event.notice, announced=event.event == "maintenance")


def schedule_symptom(cloud: Cloud, record: NodeRecord, symptom: str, after: float = 0.0) -> None:
    """Schedule that a symptom of a node is reported, after so many emulated seconds."""
    fault_id, at = f"scheduled-{cloud.next_number('scheduled')}", cloud.clock.now() + after
    cloud.schedule(
        ScheduledFault(id=fault_id, at=at, kind=FaultKind.SYMPTOM, node=record.name, uid=record.uid, symptom=symptom)
    )


def schedule_reclaim(
    cloud: Cloud, record: NodeRecord, then: FaultKind, after: float, notice: float = 0.0, *, announced: bool = False
) -> None:
    """Schedule a notice and the preemption or termination that follows it.

    Args:
        cloud: the cloud.
        record: the node.
        then: PREEMPT or TERMINATE.
        after: emulated seconds from now until the notice.
        notice: emulated seconds from the notice until the node is reclaimed.
        announced: in place of the notice to the workers, the API shows a planned maintenance.
    """
    cloud.schedule(
        ScheduledFault(
            id=f"scheduled-{cloud.next_number('scheduled')}",
            at=cloud.clock.now() + after,
            kind=FaultKind.ANNOUNCE if announced else FaultKind.NOTICE,
            node=record.name,
            uid=record.uid,
            then=then,
            notice=notice,
        )
    )
