"""What the cloud holds under a request's name, in one word: a queued resource with its nodes, or a node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from tpux_gcp.api import Api
from tpux_gcp.views import NodeView, Place, QueuedView

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


def look(api: Api, place: Place, name: str, *, queue: bool) -> Thing | None:
    """What the cloud holds under a name in a zone; None where it says that there is nothing.

    Args:
        api: whom to ask.
        place: where.
        name: the name of the queued resource or of the node.
        queue: whether to look for a queued resource first; a node of that name is found too.

    Raises:
        CloudError: it could not be seen. That is never a word that there is nothing.
    """
    if queue and (resource := api.queued(place, name)) is not None:
        return of_queued(resource, _nodes(api, place, resource) if resource.state == "ACTIVE" else {})
    node = api.node(place, name)
    return None if node is None else of_node(node)


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


def _nodes(api: Api, place: Place, resource: QueuedView) -> dict[str, NodeView]:
    """Its nodes by name: one call, however many slices there are."""
    if len(resource.nodes) == 1:
        node = api.node(place, resource.nodes[0])
        return {} if node is None else {node.name: node}
    return {node.name: node for node in api.nodes(place) if node.name in resource.nodes}
