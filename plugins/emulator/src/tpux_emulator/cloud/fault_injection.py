"""Injects faults into a node, its workers or a queued resource: preemption, network cut, fake state, and so on."""

from __future__ import annotations

import asyncio
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from tpux import TpuxError
from tpux_emulator.cloud import queue_state, scheduled_faults
from tpux_emulator.cloud.cloud import Cloud
from tpux_emulator.cloud.preemption_model import schedule_reclaim, schedule_symptom
from tpux_emulator.cloud.records import (
    FaultKind,
    NodeRecord,
    QueuedRecord,
    ScheduledFault,
    WorkerRecord,
    short_name,
)
from tpux_emulator.errors import Status
from tpux_emulator.messages import Health, Initiator, NodeState, SymptomType

Found = TypeVar("Found", NodeRecord, QueuedRecord)


class _NodeFault(BaseModel):
    """A fault of a node. Durations are emulated seconds; an empty list of workers means all."""

    model_config = ConfigDict(extra="forbid")
    node: str


class Reclaim(_NodeFault):
    """Preempt a node, or terminate it for maintenance; `notice` seconds pass between the notice and that.

    `maintenance` is a planned one: the API and the metadata server show when it begins, and no worker gets a signal.
    """

    fault: Literal["preempt", "terminate", "maintenance"]
    after: float = Field(default=0.0, ge=0)
    notice: float = Field(default=0.0, ge=0)


class Symptom(_NodeFault):
    """Report a symptom of a node."""

    fault: Literal["symptom"]
    symptom: SymptomType = "OUT_OF_MEMORY"


class CutNetwork(_NodeFault):
    """Cut workers from the network (`hang`: no answer; `refuse`: the port is closed), or restore them."""

    fault: Literal["cut", "restore"]
    workers: list[int] = []
    how: Literal["hang", "refuse"] = "hang"
    lasting: float | None = Field(default=None, ge=0)


class FakeState(_NodeFault):
    """Show another state than the node's; the real one if none is given."""

    fault: Literal["fake_state"]
    state: NodeState | None = None
    lasting: float | None = Field(default=None, ge=0)


class Freeze(_NodeFault):
    """Pause a node's state machine, in this state or in the next transient one; or let it continue."""

    fault: Literal["freeze", "unfreeze"]
    lasting: float | None = Field(default=None, ge=0)


class SetHealth(_NodeFault):
    """Set a node's health."""

    fault: Literal["health"]
    health: Health


class RotateHostKey(_NodeFault):
    """Replace the host keys of workers; if not `published`, the API still shows the old ones."""

    fault: Literal["rotate_host_key"]
    workers: list[int] = []
    published: bool = True


class Reboot(_NodeFault):
    """Restart workers: processes end, disks stay."""

    fault: Literal["reboot"]
    workers: list[int] = []


class EndQueued(BaseModel):
    """Suspend a queued resource, or let it fail with an error."""

    model_config = ConfigDict(extra="forbid")
    fault: Literal["suspend", "fail"]
    queued_resource: str
    code: int = 13
    message: str = "an internal error has occurred"


class ForgetQueued(BaseModel):
    """Delete a queued resource while its nodes remain; without `linked`, they no longer name it either."""

    model_config = ConfigDict(extra="forbid")
    fault: Literal["forget"]
    queued_resource: str
    linked: bool = True


Injection = Annotated[
    Reclaim | Symptom | CutNetwork | FakeState | Freeze | SetHealth | RotateHostKey | Reboot | EndQueued | ForgetQueued,
    Field(discriminator="fault"),
]


async def inject(cloud: Cloud, injection: Injection) -> JsonValue:
    """Apply or schedule a fault.

    Returns:
        The affected resource, for the client.

    Raises:
        TpuxError: there is no such node, worker or queued resource.
    """
    if isinstance(injection, EndQueued):
        return _end_queued(cloud, injection)
    if isinstance(injection, ForgetQueued):
        return _forget_queued(cloud, injection)
    record = _find("node", cloud.nodes, injection.node)
    if isinstance(injection, Reclaim | Symptom):
        _schedule(cloud, record, injection)
    elif isinstance(injection, CutNetwork):
        await _cut(cloud, record, injection)
    elif isinstance(injection, RotateHostKey | Reboot):
        await asyncio.gather(*(_change(cloud, record, each, injection) for each in _select(record, injection.workers)))
    elif isinstance(injection, FakeState):
        record.faked_state = injection.state
        _end_later(cloud, record, FaultKind.SHOW_REAL_STATE, injection.lasting)
    elif isinstance(injection, Freeze):
        record.frozen = injection.fault == "freeze"
        _end_later(cloud, record, FaultKind.UNFREEZE, injection.lasting)
    else:
        record.health = injection.health
    cloud.save(record)
    return {"node": record.name}


def _schedule(cloud: Cloud, record: NodeRecord, injection: Reclaim | Symptom) -> None:
    if isinstance(injection, Symptom):
        schedule_symptom(cloud, record, injection.symptom)
        return
    then = FaultKind.PREEMPT if injection.fault == "preempt" else FaultKind.TERMINATE
    announced = injection.fault == "maintenance"
    schedule_reclaim(cloud, record, then, injection.after, injection.notice, announced=announced)


def _find(kind: str, records: dict[str, Found], name: str) -> Found:
    """Return the resource with a full name, an id, or an id that begins with `NAME-`, as jobs make from `tpu.name`.

    Raises:
        TpuxError: there is none, or there are several.
    """
    found = [record for full, record in records.items() if name in (full, short_name(full))]
    found = found or [record for full, record in records.items() if short_name(full).startswith(f"{name}-")]
    if len(found) == 1:
        return found[0]
    if found:
        hint = "give the full name: " + ", ".join(record.name for record in found)
        raise TpuxError(f"there are {len(found)} {kind}s called {name!r}", hint=hint)
    known = ", ".join([short_name(full) for full in records][:20])
    raise TpuxError(f"there is no {kind} {name!r}", hint=f"there are: {known or 'none'}")


def _select(record: NodeRecord, numbers: list[int]) -> list[WorkerRecord]:
    """Return the workers with these numbers, or all if there are no numbers.

    Raises:
        TpuxError: the node has no worker of a number.
    """
    for number in numbers:
        if not 0 <= number < len(record.workers):
            count = len(record.workers)
            raise TpuxError(f"node {short_name(record.name)} has no worker {number}", hint=f"it has {count}")
    return [worker for worker in record.workers if not numbers or worker.index in numbers]


async def _cut(cloud: Cloud, record: NodeRecord, injection: CutNetwork) -> None:
    _select(record, injection.workers)
    how = injection.how if injection.fault == "cut" else ""
    await scheduled_faults.cut(cloud, record, how, injection.workers)
    if how:
        _end_later(cloud, record, FaultKind.RESTORE, injection.lasting, injection.workers)


def _end_later(
    cloud: Cloud, record: NodeRecord, kind: FaultKind, lasting: float | None, workers: list[int] | None = None
) -> None:
    if lasting is not None:
        at = cloud.clock.now() + lasting
        fault_id = f"scheduled-{cloud.next_number('scheduled')}"
        cloud.schedule(
            ScheduledFault(id=fault_id, at=at, kind=kind, node=record.name, uid=record.uid, workers=workers or [])
        )


async def _change(cloud: Cloud, record: NodeRecord, worker: WorkerRecord, injection: RotateHostKey | Reboot) -> None:
    if isinstance(injection, Reboot):
        await cloud.backend.reboot(record, worker)
        return
    before = worker.host_keys
    await cloud.backend.rotate_host_key(record, worker)
    if not injection.published:
        worker.host_keys = before


def _end_queued(cloud: Cloud, injection: EndQueued) -> JsonValue:
    record = _find("queued resource", cloud.queued, injection.queued_resource)
    if injection.fault == "suspend":
        queue_state.suspend(cloud, record, Initiator.SERVICE)
    else:
        queue_state.fail(cloud, record, Status(code=injection.code, message=injection.message))
    return {"queuedResource": record.name}


def _forget_queued(cloud: Cloud, injection: ForgetQueued) -> JsonValue:
    record = _find("queued resource", cloud.queued, injection.queued_resource)
    for node in [] if injection.linked else cloud.nodes_of(record):
        node.queued_resource = None
        cloud.save(node)
    cloud.delete(record)
    return {"queuedResource": record.name}
