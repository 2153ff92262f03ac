"""Records of the cloud's resources and scheduled faults, as the state file keeps them."""

from __future__ import annotations

import hashlib
import re
from enum import StrEnum

from pydantic import BaseModel, JsonValue

from tpux_emulator.errors import Status
from tpux_emulator.messages import Health, Initiator, Node, NodeState, QueuedResource, QueuedState


class WorkerRecord(BaseModel):
    """A TPU VM.

    Args:
        index: its number within the node.
        hostname: its host name.
        slot: index of its addresses in the emulator's address block.
        external: the address for clients.
        internal: the address for the other workers of the slice.
        host_keys: public host keys by key type.
        guest_attributes: values by `namespace/key`, as the worker itself published them.
        cut: how it is cut from the network: `hang` or `refuse`; empty when it is not.
    """

    index: int
    hostname: str
    slot: int
    external: str
    internal: str
    host_keys: dict[str, str] = {}
    guest_attributes: dict[str, str] = {}
    cut: str = ""


class LoginProfile(BaseModel):
    """The OS Login profile of a user.

    Args:
        email: whose it is.
        keys: public keys by fingerprint.
    """

    email: str
    keys: dict[str, str] = {}

    @property
    def username(self) -> str:
        """The name of its POSIX account: `ann_example_com` for ann@example.com."""
        return re.sub(r"[^a-z0-9]", "_", self.email.lower())[:32]


class NodeRecord(BaseModel):
    """A TPU slice.

    Args:
        name: `projects/P/locations/Z/nodes/N`.
        spec: the node as it was requested.
        accelerator_type: the type, also where the spec gives a topology instead.
        uid: the API's `id`.
        created: emulated Unix seconds.
        incarnation: how many nodes of this name have been created so far, this one included.
        state: the real state.
        faked_state: the state that the API shows instead (a fault).
        due: when the state machine advances, in emulated Unix seconds; None in a state that lasts.
        frozen: whether the state machine is paused (a fault).
        operation: the operation to complete at the next transition.
        creation_error: the error that the creation will end with (a fault).
        maintenance: when its planned maintenance begins, in emulated Unix seconds; None if none is planned.
        symptoms: what Google reports of it (the API's `symptoms`).
        preempted: the value of `instance/preempted` on the workers' metadata server.
        os_login_keys: with OS Login, the keys of all profiles (`USER:KEY`) in place of the metadata's; else None.
    """

    name: str
    spec: Node
    accelerator_type: str
    uid: int
    created: float
    incarnation: int = 0
    state: NodeState = NodeState.CREATING
    health: Health = Health.HEALTHY
    faked_state: NodeState | None = None
    due: float | None = None
    frozen: bool = False
    operation: str | None = None
    creation_error: Status | None = None
    maintenance: float | None = None
    symptoms: list[dict[str, JsonValue]] = []
    preempted: bool = False
    os_login_keys: list[str] | None = None
    workers: list[WorkerRecord] = []
    queued_resource: str | None = None
    multislice: bool = False

    @property
    def zone(self) -> str:
        """The zone in its name."""
        return self.name.split("/")[3]

    @property
    def spot(self) -> bool:
        """Whether the cloud may preempt it at any time."""
        scheduling = self.spec.scheduling_config
        return bool(scheduling and (scheduling.spot or scheduling.preemptible))


class QueuedRecord(BaseModel):
    """A queued resource. Fields that are not listed are those of `NodeRecord`.

    Args:
        name: `projects/P/locations/Z/queuedResources/Q`.
        spec: the queued resource as it was requested.
        nodes: full names of its nodes, existing or not.
        error: why it failed.
        creation_error: the error that it will fail with when it is provisioned (a fault).
        initiator: who suspended it.
        valid_after: emulated Unix seconds before which it is not provisioned.
        valid_until: emulated Unix seconds at which it fails if it is not provisioned yet.
    """

    name: str
    spec: QueuedResource
    created: float
    nodes: list[str]
    state: QueuedState = QueuedState.CREATING
    initiator: Initiator | None = None
    error: Status | None = None
    creation_error: Status | None = None
    due: float | None = None
    frozen: bool = False
    operation: str | None = None
    valid_after: float = 0.0
    valid_until: float | None = None

    @property
    def zone(self) -> str:
        """The zone in its name."""
        return self.name.split("/")[3]


class OperationRecord(BaseModel):
    """A long-running operation.

    Args:
        name: `projects/P/locations/Z/operations/operation-...`.
        verb: create, delete, update, start, stop, reset.
        target: the full name of the resource that it changes.
        response: the resource when the operation ended; `{}` for Empty.
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


class FaultKind(StrEnum):
    """The kind of a scheduled fault."""

    NOTICE = "notice"  # announce a preemption or termination to the workers; it follows after the notice period
    ANNOUNCE = "announce"  # show a planned maintenance, which begins after the notice period
    SYMPTOM = "symptom"  # report a symptom
    PREEMPT = "preempt"
    TERMINATE = "terminate"
    RESTORE = "restore"  # reconnect workers to the network
    SHOW_REAL_STATE = "show-real-state"
    UNFREEZE = "unfreeze"


class ScheduledFault(BaseModel):
    """A fault, or the end of one, that will happen to a node at a known time.

    Args:
        id: its key in the store.
        at: when, in emulated Unix seconds.
        kind: what happens.
        node: the node's full name.
        uid: the node's id, so that a later node of the same name is not affected.
        then: for NOTICE, what follows: PREEMPT or TERMINATE.
        notice: for NOTICE and ANNOUNCE, the period until the event in emulated seconds.
        symptom: for SYMPTOM, its type.
        workers: for RESTORE, the workers' numbers; empty means all.
    """

    id: str
    at: float
    kind: FaultKind
    node: str
    uid: int
    then: FaultKind = FaultKind.PREEMPT
    notice: float = 0.0
    symptom: str = ""
    workers: list[int] = []


class RequestId(BaseModel):
    """The operation that a client's `requestId` started."""

    operation: str


class Counter(BaseModel):
    """The last number that a counter gave out."""

    value: int = 0


def short_name(name: str) -> str:
    """Return the last part of a full resource name."""
    return name.rpartition("/")[2]


def stable_number(seed: str) -> int:
    """Return a 63-bit number derived from a seed, for ids."""
    return int.from_bytes(hashlib.sha256(seed.encode()).digest()[:8], "big") >> 1
