"""Injects faults into the cluster: what happens to nodes, pods, workloads, connections and tokens."""

from __future__ import annotations

from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from tpux import TpuxError
from tpux_emulator.kubernetes.cluster import Cluster
from tpux_emulator.kubernetes.exec import Exec
from tpux_emulator.kubernetes.kubelet import Fate, Kubelet
from tpux_emulator.kubernetes.kueue import Kueue
from tpux_emulator.kubernetes.nodes import Scheduler
from tpux_emulator.kubernetes.objects import POOL, JobSet, KubeObject, Node, Pod, Taint

Kind = TypeVar("Kind", bound=KubeObject)
_EVICTIONS = {
    "Preempted": "Preempted to accommodate a workload due to prioritization in the ClusterQueue",
    "PodsReadyTimeout": "Exceeded the PodsReady timeout",
}
_SHUTDOWN = "Pod was terminated in response to imminent node shutdown."


class PodFault(BaseModel):
    """A fault of a pod or its node, by the pod's name or a prefix that only one pod has.

    `preempt`: the spot node goes; `maintenance`: the node is tainted, and goes after `notice` if there is one;
    `host-error`: the node goes without SIGTERM; `evict`: the kubelet evicts the pod; `oom`: the container is killed
    for its memory; `cut`: the connections of exec are aborted.
    """

    model_config = ConfigDict(extra="forbid")
    fault: Literal["preempt", "maintenance", "host-error", "evict", "oom", "cut"]
    pod: str
    notice: float | None = Field(default=None, ge=0)


class WorkloadFault(BaseModel):
    """Kueue evicts a JobSet's workload, as for one of a higher priority. It may return after `requeue`."""

    model_config = ConfigDict(extra="forbid")
    fault: Literal["kueue-evict"]
    jobset: str
    reason: str = "Preempted"
    requeue: float = Field(default=0.0, ge=0)


class ExpiryFault(BaseModel):
    """The token is no longer valid, and the kubeconfig's token file has a new one; or the `continue` tokens expire."""

    model_config = ConfigDict(extra="forbid")
    fault: Literal["expire-token", "expire-lists"]


KubernetesFault = Annotated[PodFault | WorkloadFault | ExpiryFault, Field(discriminator="fault")]


class Faults:
    """Injects faults.

    Args:
        cluster: the cluster.
        scheduler: loses the nodes.
        kubelet: ends the pods.
        kueue: evicts the workloads.
        execs: the open connections.
    """

    def __init__(self, cluster: Cluster, scheduler: Scheduler, kubelet: Kubelet, kueue: Kueue, execs: Exec) -> None:
        self._cluster, self._scheduler, self._kubelet = cluster, scheduler, kubelet
        self._kueue, self._execs = kueue, execs

    def inject(self, fault: KubernetesFault) -> JsonValue:
        """Inject a fault.

        Raises:
            TpuxError: there is no such pod or JobSet.
        """
        if isinstance(fault, WorkloadFault):
            preempted = "InClusterQueue" if fault.reason == "Preempted" else ""
            message = _EVICTIONS.get(fault.reason, f"The workload is evicted: {fault.reason}")
            jobset = self._find(JobSet, fault.jobset)
            self._kueue.evict(jobset, fault.reason, message, preempted=preempted, requeue=fault.requeue)
            return {"jobset": jobset.name}
        if isinstance(fault, ExpiryFault):
            return {}
        pod = self._find(Pod, fault.pod)
        if fault.fault == "cut":
            return {"pod": pod.name, "connections": self._execs.cut(pod.uid)}
        self._end(fault, pod)
        return {"pod": pod.name, "node": pod.spec.node_name}

    def _end(self, fault: PodFault, pod: Pod) -> None:
        cluster, now = self._cluster, self._cluster.now
        node = cluster.lookup(Node, "", pod.spec.node_name or "")
        if fault.fault == "oom":
            self._kubelet.end(pod, Fate(now, terminated="OOMKilled", silent=True))
        elif fault.fault == "evict":
            message = "The node was low on resource: ephemeral-storage. Container main was using 120Gi, request is 0."
            self._kubelet.end(pod, Fate(now, "Evicted", message, "TerminationByKubelet"))
        elif not isinstance(node, Node):
            raise TpuxError(f"pod {pod.name} has no node yet")
        elif fault.fault == "host-error":
            self._not_ready(node, "NodeStatusUnknown", "Kubelet stopped posting node status.")
            message = "Taint manager: deleting due to NoExecute taint"
            self._kubelet.end(pod, Fate(now, "NodeLost", message, "DeletionByTaintManager", silent=True))
            cluster.cloud.spawn(self._lose(node, pod.uid, 0.0))
        elif fault.fault == "preempt":
            notice = cluster.settings.spot_notice if fault.notice is None else fault.notice
            self._not_ready(node, "KubeletNotReady", "node is shutting down")
            cluster.event(
                node, "PreemptScheduled", f"Spot VM {node.name} is preempted", warning=True, by="node-problem-detector"
            )
            self._kubelet.end(pod, Fate(now + notice, "Terminated", _SHUTDOWN, "TerminationByKubelet"))
            cluster.cloud.spawn(self._lose(node, pod.uid, notice))
        else:
            node.spec.taints.append(Taint(key="cloud.google.com/impending-node-termination", effect="NoSchedule"))
            node.metadata.labels = {
                **(node.metadata.labels or {}),
                "cloud.google.com/active-node-maintenance": "ONGOING",
            }
            cluster.put(node)
            if fault.notice is not None:
                cluster.cloud.spawn(self._maintain(pod.uid, node, fault.notice))

    async def _maintain(self, uid: str, node: Node, notice: float) -> None:
        """Shut a node down after the notice; its pod has its own grace."""
        await self._sleep(notice)
        if (pod := self._cluster.find(Pod, uid)) is None:
            return
        grace = pod.spec.termination_grace_period_seconds
        self._not_ready(node, "KubeletNotReady", "node is shutting down")
        self._kubelet.end(pod, Fate(self._cluster.now + grace, "Terminated", _SHUTDOWN, "TerminationByKubelet"))
        await self._lose(node, uid, grace)

    async def _lose(self, node: Node, uid: str, seconds: float) -> None:
        """Remove a node with its pool once its pod has ended, or the time is over."""
        until = self._cluster.now + seconds
        while (pod := self._cluster.find(Pod, uid)) is not None and not pod.ended and self._cluster.now < until:
            await self._cluster.wait(uid, until - self._cluster.now)
        await self._sleep(self._cluster.settings.retry)  # the node's object goes later than its pods
        pool = {each.name for each in self._cluster.all(Node) if each.label(POOL) == node.label(POOL)}
        for each in self._cluster.all(Pod):
            if each.spec.node_name in pool and not each.ended and not each.deleting:
                self._cluster.delete(each)  # the other hosts of the slice are drained
        self._scheduler.lose(node.label(POOL))

    async def _sleep(self, seconds: float) -> None:
        until = self._cluster.now + seconds
        while (left := until - self._cluster.now) > 0:
            await self._cluster.wait("-", left)

    def _not_ready(self, node: Node, reason: str, message: str) -> None:
        self._cluster.set_condition(node.status.conditions, "Ready", False, reason, message)
        node.spec.taints.append(Taint(key="node.kubernetes.io/not-ready", effect="NoSchedule"))
        self._cluster.put(node)

    def _find(self, model: type[Kind], name: str) -> Kind:
        found = [each for each in self._cluster.all(model) if each.name == name]
        found = found or [each for each in self._cluster.all(model) if each.name.startswith(name)]
        if len(found) != 1:
            some = ", ".join(each.name for each in self._cluster.all(model)) or "none"
            count = "no" if not found else f"{len(found)}"
            raise TpuxError(f"there are {count} {model.__name__} objects with the name {name!r}; there are: {some}")
        return found[0]
