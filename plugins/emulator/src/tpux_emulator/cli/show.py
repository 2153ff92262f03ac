"""The status as people read it."""

from __future__ import annotations

from pydantic import BaseModel

from tpux_emulator.api.proto import JsonObject
from tpux_emulator.cloud.records import WorkerRecord
from tpux_emulator.faults.plans import Plan
from tpux_emulator.faults.rules import Rule


class _Node(BaseModel):
    name: str
    state: str
    shown: str | None
    accelerator_type: str
    stuck: bool
    workers: list[WorkerRecord]


class _Queued(BaseModel):
    name: str
    state: str
    nodes: list[str]


class _Status(BaseModel):
    url: str
    pid: int
    workers: bool
    ssh_port: int | None
    clock_rate: float
    now: float
    nodes: list[_Node]
    queuedResources: list[_Queued]  # noqa: N815  as the route writes it
    rules: list[Rule]
    plans: list[Plan]


def status_text(status: JsonObject) -> str:
    """A few lines for the emulator, one for each thing in its cloud."""
    read = _Status.model_validate(status)
    ssh = f"workers on SSH port {read.ssh_port}" if read.workers else "no workers"
    rate = f", clock {read.clock_rate:g} times as fast" if read.clock_rate != 1 else ""
    lines = [f"{read.url}  process {read.pid}, {ssh}{rate}"]
    lines += [_node(node) for node in read.nodes]
    for queued in read.queuedResources:
        nodes = ", ".join(_short(name) for name in queued.nodes)
        lines.append(f"queued  {_short(queued.name):24} {queued.state:22} {_zone(queued.name)}  for {nodes}")
    lines += [f"fault   {rule_text(rule, read.now)}" for rule in read.rules]
    for plan in read.plans:
        lines.append(f"planned {plan.deed.value} {_short(plan.node)} in {max(0.0, plan.at - read.now):.0f} s")
    return "\n".join(lines)


def rule_text(rule: Rule, now: float) -> str:
    """One standing fault: what differs from the defaults."""
    said = rule.model_dump(mode="json", exclude_defaults=True, exclude={"id", "effect", "until"})
    words = [f"{key}={value}" for key, value in said.items() if value is not None]
    if rule.until is not None:
        words.append(f"for {max(0.0, rule.until - now):.0f} s more")
    return " ".join([rule.id, *words])


def _node(node: _Node) -> str:
    state = node.state + (f" (shows {node.shown})" if node.shown else "") + (" (stuck)" if node.stuck else "")
    count = len(node.workers)
    first = node.workers[0].external if node.workers else "-"
    cut = [str(worker.index) for worker in node.workers if worker.cut]
    severed = f"  cut: {','.join(cut)}" if cut else ""
    return (
        f"node    {_short(node.name):24} {state:22} {_zone(node.name)}  {node.accelerator_type},"
        f" {count} worker{'s' if count != 1 else ''} from {first}{severed}"
    )


def _short(name: str) -> str:
    return name.rpartition("/")[2]


def _zone(name: str) -> str:
    return name.split("/")[3]
