"""Orders: what is done to one node, worker or queued resource, now or at a time."""

from __future__ import annotations

from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from tpux import TpuxError
from tpux_emulator.api.messages import Health, Initiator, NodeState
from tpux_emulator.cloud import planned, queue_life
from tpux_emulator.cloud.cloud import Cloud
from tpux_emulator.cloud.names import short
from tpux_emulator.cloud.records import NodeRecord, QueuedRecord, WorkerRecord
from tpux_emulator.errors import Status
from tpux_emulator.faults.plans import Deed, Plan

Found = TypeVar("Found", NodeRecord, QueuedRecord)


class _Order(BaseModel):
    model_config = ConfigDict(extra="forbid")


class TakeAway(_Order):
    """Preempt a node, or terminate it for maintenance, after a while and with a notice (seconds)."""

    order: Literal["preempt", "terminate"]
    node: str
    after: float = Field(default=0.0, ge=0)
    notice: float = Field(default=0.0, ge=0)


class Cut(_Order):
    """Cut workers from the network (`hang`: nothing is answered; `refuse`: the port is closed), or restore them."""

    order: Literal["cut", "restore"]
    node: str
    workers: list[int] = []
    how: Literal["hang", "refuse"] = "hang"
    lasting: float | None = Field(default=None, ge=0)


class Lie(_Order):
    """Show a state that is not the node's; without one, the truth again."""

    order: Literal["lie"]
    node: str
    state: NodeState | None = None
    lasting: float | None = Field(default=None, ge=0)


class Stick(_Order):
    """Keep a node in the state it is in, or in the next one that passes, such as DELETING; or let it go on."""

    order: Literal["stick", "unstick"]
    node: str
    lasting: float | None = Field(default=None, ge=0)


class SetHealth(_Order):
    """Show a node's health."""

    order: Literal["health"]
    node: str
    health: Health


class Rekey(_Order):
    """Give workers other host keys."""

    order: Literal["rekey"]
    node: str
    workers: list[int] = []


class EndQueued(_Order):
    """Suspend a queued resource, or let it fail with an error."""

    order: Literal["suspend", "fail"]
    queued_resource: str
    code: int = 13
    message: str = "an internal error has occurred"


Order = Annotated[TakeAway | Cut | Lie | Stick | SetHealth | Rekey | EndQueued, Field(discriminator="order")]


def find_node(cloud: Cloud, name: str) -> NodeRecord:
    """A node by its full name or its id.

    Raises:
        TpuxError: there is none, or several zones or projects have one.
    """
    found = [node for full, node in cloud.nodes.items() if name in (full, short(full))]
    return _only(found, "node", name, [short(full) for full in cloud.nodes])


def find_queued(cloud: Cloud, name: str) -> QueuedRecord:
    """A queued resource by its full name or its id.

    Raises:
        TpuxError: there is none, or several zones or projects have one.
    """
    found = [item for full, item in cloud.queued.items() if name in (full, short(full))]
    return _only(found, "queued resource", name, [short(full) for full in cloud.queued])


def _only(found: list[Found], kind: str, name: str, known: list[str]) -> Found:
    if len(found) == 1:
        return found[0]
    if found:
        hint = "give its full name: " + ", ".join(record.name for record in found)
        raise TpuxError(f"there are {len(found)} of the name {name!r}", hint=hint)
    raise TpuxError(f"there is no {kind} {name!r}", hint=f"there are: {', '.join(known[:20]) or 'none'}")


async def carry_out_order(cloud: Cloud, order: Order) -> JsonValue:
    """Do what is ordered; the answer says to whom.

    Raises:
        TpuxError: there is no such node, worker or queued resource.
    """
    if isinstance(order, EndQueued):
        return _end_queued(cloud, order)
    record = find_node(cloud, order.node)
    if isinstance(order, TakeAway):
        _take_away(cloud, record, order)
    elif isinstance(order, Cut):
        await _cut(cloud, record, order)
    elif isinstance(order, Rekey):
        for worker in _chosen(record, order.workers):
            await cloud.fleet.rekey(record, worker)
    elif isinstance(order, Lie):
        record.shown = order.state
        _later(cloud, record, Deed.TRUTH, order.lasting)
    elif isinstance(order, Stick):
        record.stuck = order.order == "stick"
        _later(cloud, record, Deed.UNSTICK, order.lasting)
    else:
        record.health = order.health
    cloud.save(record)
    return {"node": record.name}


def _take_away(cloud: Cloud, record: NodeRecord, order: TakeAway) -> None:
    then = Deed.PREEMPT if order.order == "preempt" else Deed.TERMINATE
    cloud.plan(
        Plan(
            id=f"plan-{cloud.count('plan')}",
            at=cloud.clock.now() + order.after,
            deed=Deed.NOTICE,
            node=record.name,
            uid=record.uid,
            then=then,
            notice=order.notice,
        )
    )


async def _cut(cloud: Cloud, record: NodeRecord, order: Cut) -> None:
    _chosen(record, order.workers)
    await planned.cut(cloud, record, order.how if order.order == "cut" else "", order.workers)
    if order.order == "cut":
        _later(cloud, record, Deed.RESTORE, order.lasting, order.workers)


def _chosen(record: NodeRecord, numbers: list[int]) -> list[WorkerRecord]:
    """The workers of those numbers, or all."""
    for number in numbers:
        if not 0 <= number < len(record.workers):
            raise TpuxError(f"node {short(record.name)} has no worker {number}", hint=f"it has {len(record.workers)}")
    return [worker for worker in record.workers if not numbers or worker.index in numbers]


def _later(
    cloud: Cloud, record: NodeRecord, deed: Deed, lasting: float | None, workers: list[int] | None = None
) -> None:
    if lasting is not None:
        at = cloud.clock.now() + lasting
        plan_id = f"plan-{cloud.count('plan')}"
        cloud.plan(Plan(id=plan_id, at=at, deed=deed, node=record.name, uid=record.uid, workers=workers or []))


def _end_queued(cloud: Cloud, order: EndQueued) -> JsonValue:
    record = find_queued(cloud, order.queued_resource)
    if order.order == "suspend":
        queue_life.suspend(cloud, record, Initiator.SERVICE)
    else:
        queue_life.fail(cloud, record, Status(code=order.code, message=order.message))
    return {"queuedResource": record.name}
