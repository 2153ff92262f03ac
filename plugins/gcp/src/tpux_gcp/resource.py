"""Nodes and queued resources as plain data, and `TpuResource`: both with one status.

The names and states are those of the TPU API v2 (`google.cloud.tpu.v2`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

Status = Literal[
    "queued",  # waits for capacity
    "creating",  # has capacity, not ready yet
    "ready",
    "stopped",
    "preempted",
    "maintenance",
    "error",  # cannot recover, for another reason
    "failed",  # a queued resource that will never get capacity
    "deleting",  # being deleted or suspended: nothing to do but wait
]
LOST: frozenset[Status] = frozenset({"preempted", "maintenance", "error", "failed"})
"""The statuses that waiting does not change."""

# Node.State
_NODE_STATUS: dict[str, Status] = {
    "READY": "ready",
    "STOPPED": "stopped",
    "STOPPING": "creating",
    "DELETING": "deleting",
    "PREEMPTED": "preempted",
    "TERMINATED": "maintenance",
    "UNKNOWN": "error",  # a repair failed
    **dict.fromkeys(
        ("CREATING", "RESTARTING", "REIMAGING", "REPAIRING", "STARTING", "HIDING", "HIDDEN", "UNHIDING"), "creating"
    ),
}
# QueuedResourceState.State
_QUEUED_STATUS: dict[str, Status] = {
    "CREATING": "queued",
    "ACCEPTED": "queued",
    "WAITING_FOR_RESOURCES": "queued",
    "PROVISIONING": "creating",
    "SUSPENDING": "deleting",
    "SUSPENDED": "preempted",
    "FAILED": "failed",
    "DELETING": "deleting",
}
# A multislice has the status of its worst slice.
_WORST_FIRST: tuple[Status, ...] = (
    "preempted", "maintenance", "error", "deleting", "stopped", "creating", "ready",
)  # fmt: skip


@dataclass(frozen=True)
class Location:
    """A zone of a project, and the full names of resources in it."""

    project: str
    zone: str

    @property
    def parent(self) -> str:
        """`projects/PROJECT/locations/ZONE`."""
        return f"projects/{self.project}/locations/{self.zone}"

    def node(self, name: str) -> str:
        """Return the full name of a node."""
        return f"{self.parent}/nodes/{name}"

    def queued_resource(self, name: str) -> str:
        """Return the full name of a queued resource."""
        return f"{self.parent}/queuedResources/{name}"


@dataclass(frozen=True)
class Endpoint:
    """A worker's IP addresses."""

    internal: str
    external: str


@dataclass(frozen=True)
class Maintenance:
    """A planned maintenance: when its window begins and ends, as the API writes it, and whether it is under way."""

    start: str
    end: str
    ongoing: bool

    def __str__(self) -> str:
        if self.ongoing:
            return "a maintenance is under way"
        times = " to ".join(
            time.partition(".")[0].rstrip("Z").replace("T", " ") for time in (self.start, self.end) if time
        )
        return f"a maintenance is planned for {times} UTC" if times else "a maintenance is planned"


@dataclass(frozen=True)
class Symptom:
    """A problem of a worker that Google reports.

    Attributes:
        kind: such as OUT_OF_MEMORY.
        time: when it was seen, as the API writes it.
        worker: the worker's number in its slice, "" if the API does not say.
        details: what more it says.
    """

    kind: str
    time: str
    worker: str
    details: str

    def __str__(self) -> str:
        on = f" of worker {self.worker}" if self.worker else ""
        at = f" at {self.time.partition('.')[0].rstrip('Z').replace('T', ' ')} UTC" if self.time else ""
        return f"Google reports {self.kind}{on}{at}" + (f": {self.details}" if self.details else "")


@dataclass(frozen=True)
class Node:
    """A node: one slice.

    Attributes:
        name: its id, without the path.
        queued_resource: the id of the queued resource that created it, or empty.
        version: its runtime version, "" if the API does not say.
        maintenance: what is planned, None if nothing is.
        symptoms: what Google reports of its workers.
    """

    name: str
    zone: str
    state: str
    health: str = ""
    accelerator: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)
    endpoints: tuple[Endpoint, ...] = ()
    queued_resource: str = ""
    pricing: str = "ondemand"
    version: str = ""
    maintenance: Maintenance | None = None
    symptoms: tuple[Symptom, ...] = ()

    @property
    def status(self) -> Status:
        """The status that its state stands for."""
        return _NODE_STATUS.get(self.state, "creating")


@dataclass(frozen=True)
class QueuedResource:
    """A queued resource.

    Attributes:
        name: its id, without the path.
        node_ids: the ids of its nodes, one per slice, in order.
        labels: the labels that its nodes get.
        error: code and message of `failedData`.
        initiator: who suspended it, USER or SERVICE.
    """

    name: str
    zone: str
    state: str
    node_ids: tuple[str, ...]
    labels: Mapping[str, str] = field(default_factory=dict)
    accelerator: str = ""
    pricing: str = "ondemand"
    error: tuple[int, str] | None = None
    initiator: str = ""


@dataclass(frozen=True)
class Operation:
    """A long-running operation; `code` is 0 unless it failed."""

    done: bool
    code: int = 0
    message: str = ""


@dataclass(frozen=True)
class TpuResource:
    """What exists under a name: a queued resource with its nodes, or a single node.

    Attributes:
        status: one status for all of it.
        state: the API's own state, as shown to the user.
        labels: the labels of its nodes.
        nodes: the nodes in the order of the slices; of a queued resource only once it is ACTIVE.
        queued_resource: the id of the queued resource, or empty.
        error: code and message of a queued resource that failed.
        suspended_by_user: a user, not the cloud, suspended the queued resource.
        missing: the ids of the nodes that an ACTIVE queued resource should have, and that the API answers do not exist.
        unknown: its state, or a node's, is one that this version of tpux does not know: nothing to do but wait.
    """

    status: Status
    state: str
    labels: Mapping[str, str]
    nodes: tuple[Node, ...] = ()
    queued_resource: str = ""
    error: tuple[int, str] | None = None
    suspended_by_user: bool = False
    accelerator: str = ""
    pricing: str = ""
    missing: tuple[str, ...] = ()
    unknown: bool = False

    @property
    def workers(self) -> int:
        """The number of workers on all its nodes."""
        return sum(len(node.endpoints) for node in self.nodes)

    def lease_names(self, location: Location, name: str) -> list[str]:
        """Return the names under which a TPU is leased: a queued resource and its nodes are one TPU with several names.

        Args:
            location: its zone.
            name: the one that was asked for; the only one that is known while nothing exists.
        """
        names = [name, self.queued_resource, *(node.name for node in self.nodes)]
        return [f"{location.parent}/{each}" for each in dict.fromkeys(names) if each]

    @classmethod
    def from_node(cls, node: Node) -> TpuResource:
        """Return a single node as a resource."""
        return cls(
            node.status, f"node {node.name} is {node.state}", node.labels, (node,), node.queued_resource,
            accelerator=node.accelerator, pricing=node.pricing, unknown=node.state not in _NODE_STATUS,
        )  # fmt: skip

    @classmethod
    def from_leftover_nodes(cls, name: str, nodes: Sequence[Node]) -> TpuResource:
        """Return the nodes that remain of a queued resource as a resource, which is to be deleted.

        Args:
            name: the id of the queued resource, which no longer exists.
            nodes: the nodes, at least one.
        """
        deleting = all(node.status == "deleting" for node in nodes)
        names = ", ".join(f"{node.name} ({node.state})" for node in nodes)
        return cls(
            "deleting" if deleting else "failed", f"queued resource {name} is gone, but its nodes remain: {names}",
            nodes[0].labels, tuple(nodes), accelerator=nodes[0].accelerator, pricing=nodes[0].pricing,
        )  # fmt: skip

    @classmethod
    def from_queued(cls, queued: QueuedResource, nodes: Mapping[str, Node]) -> TpuResource:
        """Return a queued resource as a resource; once it is ACTIVE, its worst node gives the status.

        Args:
            queued: the queued resource.
            nodes: its existing nodes by id; needed only if it is ACTIVE.
        """
        resource = cls(
            _QUEUED_STATUS.get(queued.state, "creating"), f"queued resource {queued.name} is {queued.state}",
            queued.labels, queued_resource=queued.name, error=queued.error,
            suspended_by_user=queued.initiator == "USER", accelerator=queued.accelerator, pricing=queued.pricing,
            unknown=queued.state not in {*_QUEUED_STATUS, "ACTIVE"},
        )  # fmt: skip
        if queued.state != "ACTIVE":
            return replace(resource, state=f"{resource.state}: {queued.error[1]}") if queued.error else resource
        missing = [name for name in queued.node_ids if name not in nodes]
        if missing or not queued.node_ids:
            reason = f"its node {missing[0]} does not exist" if missing else "it has no nodes"
            first = next((nodes[name] for name in queued.node_ids if name in nodes), None)  # it may have a claim
            return replace(
                resource, status="error", state=f"{resource.state}, but {reason}", missing=tuple(missing),
                labels=first.labels if first else queued.labels,
            )  # fmt: skip
        own = tuple(nodes[name] for name in queued.node_ids)
        worst = min(own, key=lambda node: (_WORST_FIRST.index(node.status), node.state in _NODE_STATUS))
        # A job that has taken over the nodes has changed their labels; those of the queued resource stay.
        return replace(
            resource, status=worst.status, state=f"node {worst.name} is {worst.state}", nodes=own,
            labels=own[0].labels, accelerator=own[0].accelerator,
            unknown=worst.state not in _NODE_STATUS,
        )  # fmt: skip
