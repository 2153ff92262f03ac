"""What the cloud remembers of each thing in it."""

from __future__ import annotations

from pydantic import BaseModel, JsonValue

from tpux_emulator.api.messages import Health, Initiator, Node, NodeState, QueuedResource, QueuedState
from tpux_emulator.errors import Status


class WorkerRecord(BaseModel):
    """One TPU VM.

    Args:
        index: its number in the node.
        hostname: its own name for itself.
        slot: which of the emulator's addresses are its.
        external: the address that clients reach it by.
        internal: the address that its siblings reach it by.
        host_keys: public host keys, key type to key.
        guest_attributes: `namespace/key` to value, as the worker itself set them.
        cut: how it is cut from the network: `hang`, `refuse`, or not at all.
    """

    index: int
    hostname: str
    slot: int
    external: str
    internal: str
    host_keys: dict[str, str] = {}
    guest_attributes: dict[str, str] = {}
    cut: str = ""


class NodeRecord(BaseModel):
    """One slice.

    Args:
        name: `projects/P/locations/Z/nodes/N`.
        spec: what was asked for.
        accelerator_type: what it comes to, where the spec gave a topology.
        uid: the API's `id`.
        created: emulated Unix seconds.
        birth: how many nodes of this name were made before; a seed for random preemptions.
        state: the true state.
        shown: a state that the API shows instead (a fault).
        due: when the state machine moves on, emulated Unix seconds; None where it rests.
        stuck: the state machine does not move (a fault).
        operation: the operation that waits for the state machine.
        doom: the error that its creation will end in.
        preempted: what the workers' metadata server says under `instance/preempted`.
    """

    name: str
    spec: Node
    accelerator_type: str
    uid: int
    created: float
    birth: int = 0
    state: NodeState = NodeState.CREATING
    health: Health = Health.HEALTHY
    shown: NodeState | None = None
    due: float | None = None
    stuck: bool = False
    operation: str | None = None
    doom: Status | None = None
    preempted: bool = False
    workers: list[WorkerRecord] = []
    queued_resource: str | None = None
    multislice: bool = False

    @property
    def zone(self) -> str:
        """The zone in its name."""
        return self.name.split("/")[3]

    @property
    def spot(self) -> bool:
        """Whether the cloud may take it away at any time."""
        how = self.spec.scheduling_config
        return bool(how and (how.spot or how.preemptible))


class QueuedRecord(BaseModel):
    """One queued resource.

    Args:
        name: `projects/P/locations/Z/queuedResources/Q`.
        spec: what was asked for.
        nodes: the full names of the nodes it stands for.
        error: why it failed.
        doomed: the error that it will fail with when it is to be provisioned (a fault).
        initiator: who suspended it.
        valid_after: emulated Unix seconds before which it is not served.
        valid_until: emulated Unix seconds after which it fails.
        (the rest as in NodeRecord)
    """

    name: str
    spec: QueuedResource
    created: float
    nodes: list[str]
    state: QueuedState = QueuedState.CREATING
    initiator: Initiator | None = None
    error: Status | None = None
    doomed: Status | None = None
    due: float | None = None
    stuck: bool = False
    operation: str | None = None
    valid_after: float = 0.0
    valid_until: float | None = None

    @property
    def zone(self) -> str:
        """The zone in its name."""
        return self.name.split("/")[3]


class OperationRecord(BaseModel):
    """One long-running operation.

    Args:
        name: `projects/P/locations/Z/operations/operation-...`.
        verb: create, delete, update, start, stop, reset.
        target: the full name of what it works on.
        response: the resource as it was when the operation ended; `{}` for Empty.
        response_type: the message type of the response.
    """

    name: str
    verb: str
    target: str
    created: float
    ended: float | None = None
    cancel_requested: bool = False
    error: Status | None = None
    response: dict[str, JsonValue] | None = None
    response_type: str = ""

    @property
    def zone(self) -> str:
        """The zone in its name."""
        return self.name.split("/")[3]


class Answered(BaseModel):
    """A request id that was seen, and the operation that it got."""

    operation: str


class Count(BaseModel):
    """A counter."""

    value: int = 0
