"""Print the status on a terminal."""

from __future__ import annotations

import typer
from pydantic import BaseModel

from tpux.api.text import print_table
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


def print_status(status: JsonObject) -> None:
    """Print a line for the emulator, the nodes and queued resources, and a line for each fault."""
    parsed = _Status.model_validate(status)
    ssh = f"workers on SSH port {parsed.ssh_port}" if parsed.workers else "no workers"
    rate = f", clock {parsed.clock_rate:g} times as fast" if parsed.clock_rate != 1 else ""
    typer.echo(f"{parsed.url}  process {parsed.pid}, {ssh}{rate}")
    if parsed.nodes:
        print_table(_nodes(parsed.nodes), drop=["zone", "first address", "type"], shorten={"node": 12})
    if parsed.queuedResources:
        print_table(_queued(parsed.queuedResources), drop=["zone"], shorten={"for": 8, "queued resource": 12})
    for rule in parsed.rules:
        typer.echo(f"fault   {_rule(rule, parsed.now)}")
    for fault in parsed.scheduledFaults:
        typer.echo(f"planned {fault.kind.value} {short_name(fault.node)} in {max(0.0, fault.at - parsed.now):.0f} s")


def _nodes(nodes: list[_Node]) -> dict[str, list[str]]:
    return {
        "node": [short_name(node.name) for node in nodes],
        "state": [_state(node) for node in nodes],
        "type": [node.accelerator_type for node in nodes],
        "workers": [str(len(node.workers)) for node in nodes],
        "first address": [node.workers[0].external if node.workers else "-" for node in nodes],
        "cut": [",".join(str(worker.index) for worker in node.workers if worker.cut) or "-" for node in nodes],
        "zone": [_zone(node.name) for node in nodes],
    }


def _queued(resources: list[_Queued]) -> dict[str, list[str]]:
    return {
        "queued resource": [short_name(queued.name) for queued in resources],
        "state": [queued.state for queued in resources],
        "for": [", ".join(short_name(name) for name in queued.nodes) or "-" for queued in resources],
        "zone": [_zone(queued.name) for queued in resources],
    }


def _rule(rule: FaultRule, now: float) -> str:
    """Return a rule's id and the fields that differ from their defaults."""
    changed = rule.model_dump(mode="json", exclude_defaults=True, exclude={"id", "effect", "until"})
    parts = [f"{key}={value}" for key, value in changed.items() if value is not None]
    if rule.until is not None:
        parts.append(f"for {max(0.0, rule.until - now):.0f} s more")
    return " ".join([rule.id, *parts])


def _state(node: _Node) -> str:
    shown = f" (shows {node.faked_state})" if node.faked_state else ""
    return node.state + shown + (" (frozen)" if node.frozen else "")


def _zone(name: str) -> str:
    return name.split("/")[3]
