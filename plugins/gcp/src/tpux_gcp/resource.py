"""What the cloud holds under a request's name: nodes, queued resources, and both in one word."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

Stand = Literal[
    "queued",  # waits for capacity
    "making",  # has it, and is on its way
    "ready",
    "stopped",
    "preempted",
    "maintenance",
    "broken",  # beyond recovery for another reason
    "failed",  # a queued resource that will never be served
    "leaving",  # being deleted, or suspended: there is nothing to do but wait
]
# The states of the TPU API v2 (Node.State, QueuedResourceState.State).
_NODE: dict[str, Stand] = {
    "READY": "ready",
    "STOPPED": "stopped",
    "STOPPING": "making",
    "DELETING": "leaving",
    "PREEMPTED": "preempted",
    "TERMINATED": "maintenance",
    "UNKNOWN": "broken",  # a repair has failed
}
_QUEUED: dict[str, Stand] = {
    "CREATING": "queued",
    "ACCEPTED": "queued",
    "WAITING_FOR_RESOURCES": "queued",
    "PROVISIONING": "making",
    "SUSPENDING": "leaving",
    "SUSPENDED": "preempted",
    "FAILED": "failed",
    "DELETING": "leaving",
}
LOST: tuple[Stand, ...] = ("preempted", "maintenance", "broken", "failed")
"""What no waiting mends."""
# Of several slices the worst counts.
_WORST: tuple[Stand, ...] = ("preempted", "maintenance", "broken", "leaving", "stopped", "making", "ready")


@dataclass(frozen=True)
class Place:
    """A zone of a project."""

    project: str
    zone: str

    @property
    def parent(self) -> str:
        """As the API names it."""
        return f"projects/{self.project}/locations/{self.zone}"

    def node(self, name: str) -> str:
        """The full name of a node."""
        return f"{self.parent}/nodes/{name}"

    def queued(self, name: str) -> str:
        """The full name of a queued resource."""
        return f"{self.parent}/queuedResources/{name}"


@dataclass(frozen=True)
class Endpoint:
    """One worker's addresses."""

    internal: str
    external: str


@dataclass(frozen=True)
class NodeView:
    """A node.

    Attributes:
        name: its id, without the path.
        queued: the id of the queued resource that it belongs to, empty where it belongs to none.
    """

    name: str
    zone: str
    state: str
    health: str = ""
    accelerator: str = ""
    version: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)
    endpoints: tuple[Endpoint, ...] = ()
    queued: str = ""
    pricing: str = "ondemand"
    created: str = ""


@dataclass(frozen=True)
class QueuedView:
    """A queued resource.

    Attributes:
        name: its id, without the path.
        nodes: the ids of the nodes that it stands for, in the order of the slices.
        error: code and message of `failedData`.
        initiator: USER or SERVICE, who suspends it.
    """

    name: str
    zone: str
    state: str
    nodes: tuple[str, ...]
    labels: Mapping[str, str] = field(default_factory=dict)
    accelerator: str = ""
    version: str = ""
    pricing: str = "ondemand"
    error: tuple[int, str] | None = None
    initiator: str = ""
    created: str = ""


@dataclass(frozen=True)
class Operation:
    """A long-running operation; `code` is 0 unless it ended in an error."""

    done: bool
    code: int = 0
    message: str = ""


@dataclass(frozen=True)
class Thing:
    """What there is.

    Attributes:
        stand: how it stands.
        state: the API's own words for that.
        labels: of its nodes.
        nodes: the nodes in the order of the slices, as far as they were looked at.
        queued: the queued resource, where it is one or belongs to one.
        error: code and message of a queued resource that failed.
        by_user: a user, not the cloud, suspends it.
    """

    stand: Stand
    state: str
    labels: Mapping[str, str]
    nodes: tuple[NodeView, ...] = ()
    queued: str = ""
    error: tuple[int, str] | None = None
    by_user: bool = False
    accelerator: str = ""
    pricing: str = ""

    @property
    def workers(self) -> int:
        """How many workers its nodes have."""
        return sum(len(node.endpoints) for node in self.nodes)


def of_node(node: NodeView) -> Thing:
    """A node that stands alone."""
    return Thing(
        _stand(node),
        f"node {node.name} is {node.state}",
        node.labels,
        (node,),
        node.queued,
        accelerator=node.accelerator,
        pricing=node.pricing,
    )


def of_queued(resource: QueuedView, nodes: Mapping[str, NodeView]) -> Thing:
    """A queued resource, with its nodes where it is ACTIVE: then they say how it stands."""
    thing = Thing(
        _QUEUED.get(resource.state, "making"),
        f"queued resource {resource.name} is {resource.state}",
        resource.labels,
        queued=resource.name,
        error=resource.error,
        by_user=resource.initiator == "USER",
        accelerator=resource.accelerator,
        pricing=resource.pricing,
    )
    if resource.state != "ACTIVE":
        return thing if resource.error is None else replace(thing, state=f"{thing.state}: {resource.error[1]}")
    missing = [name for name in resource.nodes if name not in nodes]
    if missing or not resource.nodes:
        which = f"its node {missing[0]} is not there" if missing else "it has no nodes"
        return replace(thing, stand="broken", state=f"{thing.state}, and {which}")
    own = tuple(nodes[name] for name in resource.nodes)
    shown = min(own, key=lambda node: _WORST.index(_stand(node)))
    return replace(thing, stand=_stand(shown), state=f"node {shown.name} is {shown.state}", nodes=own)


def _stand(node: NodeView) -> Stand:
    return _NODE.get(node.state, "making")
