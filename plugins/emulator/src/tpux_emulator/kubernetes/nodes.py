"""Node pools and the scheduler: a slice, whose pods belong together, gets the nodes of one pool."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field

from tpux_emulator.cloud.fault_rules import Effect
from tpux_emulator.kubernetes.cluster import Cluster, random_suffix
from tpux_emulator.kubernetes.objects import (
    ACCELERATOR,
    CHIPS,
    JOB_INDEX,
    JOBSET_UID,
    POOL,
    TOPOLOGY,
    Node,
    NodeSpec,
    NodeStatus,
    Pod,
    Taint,
)

_FAMILIES = {
    "tpu-v4-podslice": ("v4", 2),
    "tpu-v5p-slice": ("v5p", 2),
    "tpu7x": ("tpu7x", 2),
    "tpu-v5-lite-podslice": ("v5litepod", 1),
    "tpu-v6e-slice": ("v6e", 1),
}
"""The family in TPU_ACCELERATOR_TYPE, and the cores of a chip, by the accelerator's label."""
_SCHEDULER, _SCALER = "default-scheduler", "cluster-autoscaler"


@dataclass
class Pool:
    """A node pool.

    Args:
        name: its name.
        labels: of its nodes.
        size: how many nodes it has.
        chips: chips of each node.
        due: when its nodes are there, in emulated Unix seconds.
        key: the slice that it was created for; empty for one of the settings.
        nodes: the names of its nodes; empty until they are there.
    """

    name: str
    labels: dict[str, str]
    size: int
    chips: int
    due: float
    key: str = ""
    nodes: list[str] = field(default_factory=list)


class Scheduler:
    """Gives pods their nodes.

    Args:
        cluster: the cluster.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._pools: dict[str, Pool] = {}
        self._retry: dict[str, float] = {}

    def run(self) -> list[float]:
        """Schedule what can be scheduled; return when there is more to do, in emulated Unix seconds."""
        self._update_pools()
        due = [pool.due for pool in self._pools.values() if not pool.nodes]
        slices: defaultdict[str, list[Pod]] = defaultdict(list)
        for pod in self._cluster.all(Pod):
            if not pod.spec.node_name and not pod.deleting:
                slices[_slice(pod)].append(pod)
        for key, pods in slices.items():
            if (moment := self._schedule(key, pods)) is not None:
                due.append(moment)
        return due

    def lose(self, pool_name: str) -> None:
        """Remove a pool's nodes: one lost node takes the slice with it. A pool of the settings comes back later."""
        pool = self._pools.get(pool_name)
        for node in self._cluster.all(Node):
            if node.label(POOL) == pool_name:
                self._cluster.event(node, "DeletingNode", f"Deleting node {node.name}", by="node-controller")
                self._cluster.remove(node)
        if pool is not None:
            pool.nodes, pool.due = [], self._cluster.now + self._cluster.settings.retry
            if pool.key:
                del self._pools[pool_name]

    def _update_pools(self) -> None:
        cluster, now = self._cluster, self._cluster.now
        wanted = {each.name: each for each in cluster.settings.node_pools or []}
        for name, each in wanted.items():
            if name not in self._pools:
                self._pools[name] = Pool(name, each.labels, each.nodes, each.chips, now)
        for name, pool in list(self._pools.items()):
            if not pool.key and name not in wanted and not self._used(pool):
                self.lose(name)
                self._pools.pop(name)
            elif not pool.nodes and pool.due <= now:
                if not pool.key and cluster.cloud.consume_rule(Effect.STOCKOUT) is not None:
                    pool.due = now + cluster.settings.retry
                    continue
                pool.nodes = [f"gke-{name}-{random_suffix()}" for _ in range(pool.size)]
                for node_name in pool.nodes:
                    self._add_node(pool, node_name)

    def _add_node(self, pool: Pool, name: str) -> None:
        labels = {**pool.labels, POOL: pool.name, "kubernetes.io/hostname": name}
        node = self._cluster.new(Node, name, "")
        node.metadata.labels = labels
        amount = {"cpu": "8", "memory": "32Gi", **({CHIPS: str(pool.chips)} if pool.chips else {})}
        node.status = NodeStatus(capacity=amount, allocatable=amount)
        taints = [Taint(key=CHIPS, value="present", effect="NoSchedule")] if pool.chips else []
        if pool.labels.get("cloud.google.com/gke-spot") == "true":
            taints.append(Taint(key="cloud.google.com/gke-spot", value="true", effect="NoSchedule"))
        node.spec = NodeSpec(taints=taints)
        self._cluster.set_condition(
            node.status.conditions, "Ready", True, "KubeletReady", "kubelet is posting ready status"
        )
        self._cluster.put(node)

    def _schedule(self, key: str, pods: list[Pod]) -> float | None:
        """Schedule the pods of a slice; return when to try again, in emulated Unix seconds."""
        pool = self._find(key, pods)
        if pool is None:
            return self._scale_up(key, pods)
        free = [name for name in pool.nodes if name not in self._taken()]
        for pod, name in zip(pods, free, strict=False):
            pod.spec.node_name = name
            self._cluster.set_condition(pod.status.conditions, "PodScheduled", True)
            self._cluster.put(pod)
            where = f"{pod.metadata.namespace}/{pod.name}"
            self._cluster.event(pod, "Scheduled", f"Successfully assigned {where} to {name}", by=_SCHEDULER)
        for pod in pods[len(free) :]:
            self._refuse(pod, f"{len(pool.nodes)} Insufficient {CHIPS}" if pod.chips else "1 Too many pods")
        return None

    def _find(self, key: str, pods: list[Pod]) -> Pool | None:
        """Return the pool that the slice has already, or a free one that fits."""
        users: defaultdict[str, set[str]] = defaultdict(set)
        for pod in self._cluster.all(Pod):
            if pod.spec.node_name:
                users[pod.spec.node_name].add(_slice(pod))
        selector, chips = pods[0].spec.node_selector, pods[0].chips
        for pool in self._pools.values():
            by = set[str]().union(*(users[name] for name in pool.nodes))
            fits = all(pool.labels.get(name) == value for name, value in selector.items() if name != POOL)
            fits = fits and selector.get(POOL, pool.name) == pool.name and bool(pool.chips) == bool(chips)
            if (
                pool.nodes
                and (by == {key} or (not by and fits) or (fits and not chips))
                and not self._unwilling(pool, pods[0])
            ):
                return pool
        return None

    def _unwilling(self, pool: Pool, pod: Pod) -> bool:
        """Return whether a node of the pool has a taint that the pod does not tolerate."""
        tolerated = {each.key for each in pod.spec.tolerations} | {CHIPS}
        taints = {
            taint.key for node in self._cluster.all(Node) if node.name in pool.nodes for taint in node.spec.taints
        }
        return None not in tolerated and not taints <= tolerated

    def _scale_up(self, key: str, pods: list[Pod]) -> float | None:
        """Create a node pool for a slice; return when to look again."""
        cluster, now, pod = self._cluster, self._cluster.now, pods[0]
        selector = {name: value for name, value in pod.spec.node_selector.items() if name != POOL}
        if any(pool.key == key and not pool.nodes for pool in self._pools.values()):
            return None  # it is coming
        for each in pods:
            self._refuse(each, "0 node(s) match Pod's node affinity/selector")
        if cluster.settings.node_pools is not None and pod.chips:
            for each in pods:
                cluster.event(each, "NotTriggerScaleUp", "pod didn't trigger scale-up: 1 node(s) didn't match"
                              " Pod's node affinity/selector", by=_SCALER)  # fmt: skip
            return now + cluster.settings.retry
        if (moment := self._retry.get(key, 0.0)) > now:
            return moment
        if pod.chips and cluster.cloud.consume_rule(Effect.STOCKOUT) is not None:
            self._retry[key] = now + cluster.settings.retry
            for each in pods:
                cluster.event(each, "FailedScaleUp", "Node scale up in zones us-central2-b associated with this pod"
                              " failed: GCE out of resources (GCE_STOCKOUT). Pod is at risk of not being scheduled.",
                              warning=True, by=_SCALER)  # fmt: skip
            return self._retry[key]
        self._retry.pop(key, None)
        size = hosts(selector.get(TOPOLOGY, ""), pod.chips) or len(pods)
        name = f"nap-{random_suffix()}" if pod.chips else "default-pool"
        self._pools[name] = Pool(name, selector, size, pod.chips, now + cluster.settings.scale_up, key)
        for each in pods:
            cluster.event(
                each, "TriggeredScaleUp", f"pod triggered scale-up: [{{{name} 0->{size} (max: {size})}}]", by=_SCALER
            )
        return now + cluster.settings.scale_up

    def _refuse(self, pod: Pod, why: str) -> None:
        count = len(self._cluster.all(Node))
        message = f"0/{count} nodes are available: {why}."
        if self._cluster.set_condition(pod.status.conditions, "PodScheduled", False, "Unschedulable", message):
            self._cluster.event(pod, "FailedScheduling", message, warning=True, by=_SCHEDULER)
            self._cluster.put(pod)

    def _taken(self) -> set[str]:
        return {pod.spec.node_name for pod in self._cluster.all(Pod) if pod.spec.node_name and pod.chips}

    def _used(self, pool: Pool) -> bool:
        return bool(self._taken() & set(pool.nodes))


def hosts(topology: str, chips_per_host: int) -> int:
    """Return how many hosts a topology has; 0 if it is none."""
    sides = topology.split("x")
    if not chips_per_host or not all(side.isdigit() for side in sides):
        return 0
    return max(1, math.prod(int(side) for side in sides) // chips_per_host)


def accelerator_environment(pod: Pod) -> dict[str, str]:
    """Return what GKE's device plugin sets in a container, from the labels of the node."""
    topology = pod.spec.node_selector.get(TOPOLOGY, "")
    if not pod.chips or not topology:
        return {}
    kind = pod.spec.node_selector.get(ACCELERATOR, "")
    family, cores = _FAMILIES.get(kind, (kind, 1))
    count = hosts(topology, pod.chips) * pod.chips * cores
    ports = ",".join(str(8431 + index) for index in range(pod.chips))
    single = {"TPU_WORKER_ID": "0", "TPU_WORKER_HOSTNAMES": "localhost"} if hosts(topology, pod.chips) == 1 else {}
    return {
        "TPU_ACCELERATOR_TYPE": f"{family}-{count}", "TPU_TOPOLOGY": topology, "TPU_SKIP_MDS_QUERY": "true",
        "TPU_CHIPS_PER_HOST_BOUNDS": "1,1,1" if pod.chips == 1 else "2,2,1", "TPU_RUNTIME_METRICS_PORTS": ports,
        **single,
    }  # fmt: skip


def _slice(pod: Pod) -> str:
    """Return what the pods of a slice have in common; `any` for a pod without chips."""
    if not pod.chips:
        return "any"
    jobset = pod.label(JOBSET_UID)
    return (
        f"{jobset}/{pod.label('jobset.sigs.k8s.io/replicatedjob-name')}-{pod.label(JOB_INDEX)}" if jobset else pod.uid
    )
