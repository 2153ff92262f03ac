"""Kueue: one ClusterQueue with a quota in chips, priorities, preemption; conditions in Kueue's words."""

from __future__ import annotations

import hashlib

from tpux_emulator.kubernetes.cluster import Cluster, is_true, owner
from tpux_emulator.kubernetes.objects import (
    CHIPS,
    KUEUE_GROUP,
    PRIORITY_LABEL,
    QUEUE_LABEL,
    JobSet,
    LocalQueue,
    Workload,
    WorkloadPriorityClass,
    WorkloadSpec,
)
from tpux_emulator.protojson import JsonObject

_BY = "kueue-admission"
_QUEUE, _FLAVOR = "cluster-queue", "tpu"


class Kueue:
    """Queues the JobSets that have a queue's name.

    Args:
        cluster: the cluster.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._due: dict[str, float] = {}

    def run(self) -> list[float]:
        """Advance the queue; return when there is more to do, in emulated Unix seconds."""
        cluster = self._cluster
        if not cluster.settings.queue:
            return []
        for workload in cluster.all(Workload):
            if cluster.find(JobSet, self._owner(workload)) is None:
                self._due.pop(workload.uid, None)
                cluster.remove(workload)
        for jobset in cluster.all(JobSet):
            if jobset.label(QUEUE_LABEL) and not jobset.deleting:
                self._follow(jobset)
        waiting = [w for w in cluster.all(Workload) if w.spec.active and not self._over(w) and not _admitted(w)]
        waiting.sort(key=lambda w: -w.spec.priority)  # of one priority: the oldest first, as they are
        due = []
        for workload in waiting:
            moment = self._due.setdefault(workload.uid, cluster.now + cluster.settings.admission)
            if moment > cluster.now:
                due.append(moment)
            else:
                self._admit(workload)
        return due

    def evict(self, jobset: JobSet, reason: str, message: str, *, preempted: str = "", requeue: float = 0.0) -> None:
        """Take the quota from a JobSet: it is suspended, and waits again.

        Args:
            jobset: the JobSet.
            reason: why, such as `Preempted` or `PodsReadyTimeout`.
            message: why, in words.
            preempted: the reason of the condition Preempted; empty for none.
            requeue: until it may be admitted again, in emulated seconds.
        """
        workload = self.workload_of(jobset)
        if workload is None:
            return
        conditions, change = workload.status.conditions, self._cluster.set_condition
        change(conditions, "Evicted", True, reason, message)
        if preempted:
            change(conditions, "Preempted", True, preempted, message)
        change(conditions, "QuotaReserved", False, "Pending", message)
        change(conditions, "Admitted", False, "NoReservation", "The workload has no reservation")
        change(conditions, "Requeued", True, reason, message)
        workload.status.admission = None
        self._due[workload.uid] = self._cluster.now + max(requeue, self._cluster.settings.admission)
        self._cluster.event(workload, f"EvictedDueTo{reason}", message, by=_BY)
        self._cluster.put(workload)
        self._suspend(jobset, suspend=True)

    def workload_of(self, jobset: JobSet) -> Workload | None:
        """Return the workload of a JobSet."""
        return next((w for w in self._cluster.all(Workload) if self._owner(w) == jobset.uid), None)

    def _follow(self, jobset: JobSet) -> None:
        """Make the workload of a JobSet, and let it end with it."""
        workload = self.workload_of(jobset)
        if workload is None:
            workload = self._new(jobset)
        if jobset.status.terminal_state and not self._over(workload):
            good = jobset.status.terminal_state == "Completed"
            reason = "Succeeded" if good else "Failed"
            last = jobset.status.conditions[-1].message or ""
            self._cluster.set_condition(workload.status.conditions, "Finished", True, reason, last)
            self._cluster.put(workload)

    def _new(self, jobset: JobSet) -> Workload:
        digest = hashlib.sha1(f"{jobset.name}{jobset.uid}JobSet".encode(), usedforsecurity=False).hexdigest()[:5]
        priority = jobset.label(PRIORITY_LABEL)
        classes = {each.name: each.value for each in self._cluster.all(WorkloadPriorityClass)}
        reference: JsonObject = {"group": KUEUE_GROUP, "kind": "WorkloadPriorityClass", "name": priority}
        spec = WorkloadSpec(
            queue_name=jobset.label(QUEUE_LABEL),
            priority=classes.get(priority, 0),
            priority_class_ref=reference if priority else None,
            pod_sets=[
                {"name": each.name, "count": each.replicas * each.template.spec.parallelism,
                 "template": each.template.spec.template.model_dump(mode="json", by_alias=True, exclude_none=True)}
                for each in jobset.spec.replicated_jobs
            ],
        )  # fmt: skip
        workload = self._cluster.new(
            Workload, f"jobset-{jobset.name}"[:57] + f"-{digest}", jobset.metadata.namespace or "", spec=spec
        )
        workload.metadata.labels = {f"{KUEUE_GROUP}/job-uid": jobset.uid}
        workload.metadata.owner_references = [owner(jobset)]
        message = f"Created Workload: {jobset.metadata.namespace}/{workload.name}"
        self._cluster.event(jobset, "CreatedWorkload", message, by="jobset-kueue-controller")
        return self._cluster.create(workload)

    def _admit(self, workload: Workload) -> None:
        """Give a workload its quota, if need be after preempting others; or say why it waits."""
        cluster, jobset = self._cluster, self._cluster.find(JobSet, self._owner(workload))
        if jobset is None:
            return
        if (why := self._obstacle(workload, jobset)) is not None:
            self._wait(workload, *why)
            return
        conditions, message = workload.status.conditions, f"Quota reserved in ClusterQueue {_QUEUE}"
        cluster.set_condition(conditions, "QuotaReserved", True, "QuotaReserved", message)
        cluster.set_condition(conditions, "Admitted", True, "Admitted", "The workload is admitted")
        for kind in ("Evicted", "Preempted"):
            if is_true(conditions, kind):
                cluster.set_condition(conditions, kind, False, "QuotaReserved", f"Previously: {kind}")
        workload.status.admission = {"clusterQueue": _QUEUE, "podSetAssignments": []}
        cluster.event(workload, "Admitted", f"Admitted by ClusterQueue {_QUEUE}", by=_BY)
        cluster.put(workload)
        self._suspend(jobset, suspend=False)

    def _obstacle(self, workload: Workload, jobset: JobSet) -> tuple[str, str] | None:
        """Return why a workload cannot be admitted now, as reason and message; preempt others if that helps."""
        cluster, queue, holders = self._cluster, workload.spec.queue_name, self._holders()
        if queue not in {each.name for each in cluster.all(LocalQueue, workload.metadata.namespace or "")}:
            return "Inadmissible", f"LocalQueue {queue} doesn't exist"
        if cluster.settings.queue_stopped:
            return "Inadmissible", f"LocalQueue {queue} is stopped"
        asked, quota = jobset.spec.chips, cluster.settings.quota
        free = quota - sum(each.spec.chips for each, _ in holders)
        about = f"couldn't assign flavors to pod set {jobset.spec.replicated_jobs[0].name}: insufficient"
        if asked > quota:
            sizes = f"request > maximum capacity ({asked} > {quota})"
            return "Pending", f"{about} quota for {CHIPS} in flavor {_FLAVOR}, {sizes}"
        more = f"{about} unused quota for {CHIPS} in flavor {_FLAVOR}, {max(0, asked - free)} more needed"
        victims = list[JobSet]()
        for victim, its in sorted(holders, key=lambda pair: pair[1].spec.priority):
            if free < asked and its.spec.priority < workload.spec.priority:
                victims.append(victim)
                free += victim.spec.chips
        if free < asked:
            return "Pending", more
        message = f"Preempted to accommodate a workload (UID: {workload.uid}, JobUID: {jobset.uid}) due to"
        for victim in victims:
            self.evict(victim, "Preempted", f"{message} prioritization in the ClusterQueue", preempted="InClusterQueue")
        leaving = [each for each in cluster.all(JobSet) if each.spec.suspend and cluster.pods_of(each)]
        if leaving:
            return "Pending", f"{more}. Pending the preemption of {len(leaving)} workload(s)"
        return None

    def _wait(self, workload: Workload, reason: str, message: str) -> None:
        if self._cluster.set_condition(workload.status.conditions, "QuotaReserved", False, reason, message):
            self._cluster.event(workload, "Pending", message, by=_BY)
            self._cluster.put(workload)

    def _holders(self) -> list[tuple[JobSet, Workload]]:
        """Return the admitted JobSets with their workloads."""
        pairs = []
        for workload in self._cluster.all(Workload):
            jobset = self._cluster.find(JobSet, self._owner(workload))
            if jobset is not None and _admitted(workload) and not self._over(workload):
                pairs.append((jobset, workload))
        return pairs

    def _suspend(self, jobset: JobSet, *, suspend: bool) -> None:
        jobset.spec.suspend = suspend
        self._cluster.put(jobset)

    def _owner(self, workload: Workload) -> str:
        return next((each.uid for each in workload.metadata.owner_references or []), "")

    def _over(self, workload: Workload) -> bool:
        return is_true(workload.status.conditions, "Finished")


def _admitted(workload: Workload) -> bool:
    return is_true(workload.status.conditions, "Admitted")
