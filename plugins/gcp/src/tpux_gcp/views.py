"""What the API shows, as plain data: nodes, queued resources, operations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


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
