"""Formats the status for a terminal."""

from __future__ import annotations

from pydantic import BaseModel

from tpux_emulator.cloud.fault_rules import FaultRule
from tpux_emulator.cloud.records import ScheduledFault, WorkerRecord, short_name
from tpux_emulator.protojson import JsonObject


class _Node(BaseModel):
    name: str
    state: str
    faked_state: str | None
    accelerator_type: str
    frozen: bool
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
    queuedResources: list[_Queued]  # noqa: N815  the key in the JSON
    rules: list[FaultRule]
    scheduledFaults: list[ScheduledFault]  # noqa: N815  the key in the JSON


def status_text(status: JsonObject) -> str:
    """Return a line for the emulator, and one for each resource and each fault."""
    parsed = _Status.model_validate(status)
    ssh = f"workers on SSH port {parsed.ssh_port}" if parsed.workers else "no workers"
    rate = f", clock {parsed.clock_rate:g} times as fast" if parsed.clock_rate != 1 else ""
    lines = [f"{parsed.url}  process {parsed.pid}, {ssh}{rate}"]
    lines += [_node(node) for node in parsed.nodes]
    for queued in parsed.queuedResources:
        nodes = ", ".join(short_name(name) for name in queued.nodes)
        lines.append(f"queued  {short_name(queued.name):24} {queued.state:22} {_zone(queued.name)}  for {nodes}")
    lines += [f"fault   {_rule(rule, parsed.now)}" for rule in parsed.rules]
    for fault in parsed.scheduledFaults:
        lines.append(f"planned {fault.kind.value} {short_name(fault.node)} in {max(0.0, fault.at - parsed.now):.0f} s")
    return "\n".join(lines)


def _rule(rule: FaultRule, now: float) -> str:
    """Return a rule's id and the fields that differ from their defaults."""
    changed = rule.model_dump(mode="json", exclude_defaults=True, exclude={"id", "effect", "until"})
    parts = [f"{key}={value}" for key, value in changed.items() if value is not None]
    if rule.until is not None:
        parts.append(f"for {max(0.0, rule.until - now):.0f} s more")
    return " ".join([rule.id, *parts])


def _node(node: _Node) -> str:
    state = node.state
    if node.faked_state:
        state += f" (shows {node.faked_state})"
    if node.frozen:
        state += " (frozen)"
    count = len(node.workers)
    first = node.workers[0].external if node.workers else "-"
    numbers = ",".join(str(worker.index) for worker in node.workers if worker.cut)
    cut = f"  cut: {numbers}" if numbers else ""
    return (
        f"node    {short_name(node.name):24} {state:22} {_zone(node.name)}  {node.accelerator_type},"
        f" {count} worker{'s' if count != 1 else ''} from {first}{cut}"
    )


def _zone(name: str) -> str:
    return name.split("/")[3]
