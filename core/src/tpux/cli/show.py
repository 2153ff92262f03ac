"""`tpux show`: show one job in full."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

import typer

from tpux.cli.common import JobArg, Json, emit, iso, new_app, short_id, summary
from tpux.cli.events import describe_event, describe_failure
from tpux.plugin.machines import JsonValue

if TYPE_CHECKING:
    from tpux.plugin.events import Event
    from tpux.store.state import State

app = new_app()


@app.command(epilog="Example: tpux show 12")
def show(job: JobArg, json: Json = False) -> None:
    """Show a job: its state, its machines, how its attempts ended, and its events."""
    from tpux.store import Store, files
    from tpux.supervisor import client

    store = Store()
    record = store.find(job)
    state = record.refresh()
    if not state.done:
        client.ensure_running(store)
    events = [event for event, _ in record.events()]
    config = files.load(record.directory / "resolved.json") or {}
    resolved = cast("dict[str, dict[str, JsonValue]]", config.get("resolved", {}))
    if json:
        emit({**_to_json(state, events), "resolved": resolved})
    else:
        _print(state, events, resolved)


def _to_json(state: State, events: list[Event]) -> dict[str, JsonValue]:
    machines = state.machines
    return {
        **summary(state),
        "workers_count": state.workers,
        "workers": _workers(state),
        "failure": cast("JsonValue", state.failure),
        "preemptions": state.preemptions,
        "restarts": cast("JsonValue", state.restarts),
        "allocation": None if machines is None else {"name": machines.name, "slices": machines.slices},
        "allocator": state.allocator,
        "release_at": None if state.release_at is None else iso(state.release_at),
        "updated_at": iso(state.updated_at),
        "events": [{**event.to_json(), "at": iso(event.at)} for event in events],
    }


def _workers(state: State) -> list[JsonValue]:
    if state.allocation is None:
        return []
    workers = cast("list[dict[str, JsonValue]]", state.allocation["workers"])
    return [
        {
            "index": worker["index"],
            "slice": worker["slice"],
            "address": worker["address"],
            "exit_code": state.endings.get(str(worker["index"]), {}).get("code"),
            "ended": str(worker["index"]) in state.endings,
        }
        for worker in workers
    ]


def _print(state: State, events: list[Event], resolved: Mapping[str, Mapping[str, JsonValue]]) -> None:
    facts = {
        "job": f"{short_id(state.id)} {state.name}",
        "state": state.state + (f": {state.why}" if state.why else ""),
        "accelerator": state.accelerator,
        "zone": state.zone,
        "machines": state.allocation and state.allocation["name"],
        "workers": state.workers,
        "attempt": state.attempt,
        "stage": state.stage,
        "preempted": f"{state.preemptions} time{'s' if state.preemptions != 1 else ''}",
        "release at": state.release_at and iso(state.release_at),
    }
    for label, fact in facts.items():
        if fact is not None:
            typer.echo(f"{label + ':':<13} {fact}")
    if failure := state.last_failure:
        typer.echo(f"{'failure:':<13} {describe_failure(failure)}")
        if failure.hint:
            typer.echo(f"{'hint:':<13} {failure.hint}")
    if resolved:
        typer.echo("\nresolved when the job was created:")
    for word, values in resolved.items():
        for name, value in values.items():
            if value not in ("", None):
                typer.echo(f"  {word}.{name}: {value}")
    typer.echo("\nevents:")
    for event in events:
        typer.echo(f"  {iso(event.at)[:19].replace('T', ' ')}  {describe_event(event)}")
