"""`tpux show`: show one job in full."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, cast

import typer

from tpux.api.attempts import LEGEND, Attempt, bars, find_attempts
from tpux.api.event_lines import RepetitionFilter, describe_event, describe_failure, describe_files, stated_line
from tpux.api.times import iso, local_time, with_iso_times
from tpux.cli.common import (
    FAILURE_COLOUR,
    STATE_COLOURS,
    Json,
    MaybeJobArg,
    changed_sources,
    current_hint,
    describe_changed,
    describe_retry,
    emit,
    find_job,
    held_notice,
    new_app,
    short_id,
    step_duration,
    summary,
)
from tpux.config.arguments import describe_arguments
from tpux.console import cell_width, echo_painted, fit, paint, printable, ranges
from tpux.durations import format_age, format_duration
from tpux.model.events import AttemptEnded, Failed, FilesCollected, StateChanged
from tpux.model.json import JsonValue, dump
from tpux.plugin.entrypoints import added_commands
from tpux.store.tags import load as load_tags

if TYPE_CHECKING:
    from tpux.model.events import Event
    from tpux.model.failures import Failure, Finding
    from tpux.store.record import Record
    from tpux.store.state import State

    Found = Mapping[int, Sequence[Finding]]

app = new_app()

LAST = 10
"""Number of events shown without `--events`, at most; on a terminal as many as have space."""
LEAST = 3
"""Number of events shown also if they have no space."""
FOLDED = 3
"""So many workers that are alike are shown in one line."""


@app.command(epilog="Example: tpux show 12")
def show(
    job: MaybeJobArg = None,
    events: Annotated[bool, typer.Option("--events", help=f"Show all events, not only the last {LAST}.")] = False,
    json: Json = False,
) -> None:
    """Show a job: its state, its workers, how its attempts ended, and its last events.

    JSON always has all events.
    """
    from tpux.store import Store, files, monitored
    from tpux.store import progress as stored_progress
    from tpux.supervisor import client

    store = Store()
    record = find_job(store, job)
    state = record.refresh()
    if not state.done:
        client.ensure_running(store)
        state = client.current_report(store).applied_to(state)
    happened = [event for event, _ in record.events()]
    config = files.load(record.config_directory / "resolved.json") or {}
    resolved = {**cast("dict[str, dict[str, JsonValue]]", config.get("resolved", {})), **state.resolved}
    progress, at = stored_progress.load(record.directory, state)
    found = monitored.load(record.directory, state)
    changed = changed_sources(store, record)
    if json:
        fields = {**progress.to_json(), "at": None if at is None else iso(at)} if progress else None
        names: list[JsonValue] = [*changed.names] if changed else []
        args: JsonValue = {key: record.stored_section("command").get(key) for key in ("args", "argv")}
        emit(
            {
                **_to_json(state, happened, found),
                "arguments": args,
                "tags": [*load_tags(record.directory)],
                "progress": fields,
                "resolved": resolved,
                "changed_sources": names,
            }
        )
    else:
        came = str(progress)
        if progress.rate and progress.total and progress.step is not None and progress.step < progress.total:
            came += f", {format_duration((progress.total - progress.step) / progress.rate)} left"
        came += f", read {format_age(time.time() - at)} ago" if at and came else ""
        collected = [event for event in happened if isinstance(event, FilesCollected)]
        given = describe_arguments(record.stored_section("command"))
        facts = {
            "tags": ", ".join(load_tags(record.directory)) or None,
            "arguments": given or None,
            "progress": came or None,
            "run": progress.url or None,
        }
        before = [
            *_facts(record, state, facts, describe_changed(changed, state)),
            *_resolved(resolved),
            *_files(state, collected),
            *_collected(state),
            *_worker_lines(state, found),
            *_attempt_lines(find_attempts(happened, time.time())),
        ]
        after = ["", f"next: {'; '.join(_next_commands(state))}"]
        shown = list(filter(RepetitionFilter().is_new, happened))
        if sys.stdout.isatty() and not events:
            before, after, room = _fit([*before, ""], after)
        else:
            before, room = [*before, ""], len(shown) if events else LAST
        for line in (*before, *_event_lines(state, shown, max(0, len(shown) - room)), *after):
            echo_painted(line)


def _fit(before: list[str], after: list[str]) -> tuple[list[str], list[str], int]:
    """Return lines, without blank ones if the terminal has few rows, and how many events fit between them."""
    size = shutil.get_terminal_size()

    def room() -> int:
        rows = sum(-(-max(1, cell_width(typer.unstyle(line))) // size.columns) for line in (*before, *after))
        return size.lines - rows - 2  # the head of the events, and the prompt

    if room() < LAST:
        before, after = list(filter(None, before)), list(filter(None, after))
    return before, after, max(LEAST, min(LAST, room()))


def _cut(text: str, indent: int = 0) -> str:
    """Return a text cut to what fits beside `indent` cells, on a terminal."""
    return fit(text, shutil.get_terminal_size().columns - indent) if sys.stdout.isatty() else text


def _to_json(state: State, events: list[Event], found: Found) -> dict[str, JsonValue]:
    machines = state.machines
    return {
        **summary(state),
        "workers_count": state.workers,
        "workers": cast("JsonValue", _workers(state, found)),
        "failure": None if state.failure is None else with_iso_times(state.failure.to_json()),
        "preemptions": state.preemptions,
        "restarts": cast("JsonValue", state.restarts),
        "collected": cast("JsonValue", state.collected),
        "allocation": None if machines is None else {"name": machines.name, "slices": machines.slices},
        "allocator": state.allocator,
        "release_at": None if state.release_at is None else iso(state.release_at),
        "updated_at": iso(state.updated_at),
        "events": [with_iso_times(event.to_json()) for event in events],
    }


def _workers(state: State, found: Found) -> list[dict[str, JsonValue]]:
    if state.machines is None:
        return []
    return [
        {
            "index": worker.index,
            "slice": worker.slice,
            "address": worker.address,
            "exit_code": state.endings[worker.index].code if worker.index in state.endings else None,
            "ended": worker.index in state.endings,
            "monitored": dump(found.get(worker.index, [])),
        }
        for worker in state.machines.workers
    ]


def _facts(record: Record, state: State, more: Mapping[str, str | None], changed: str) -> Iterator[str]:
    preempted = f", preempted {state.preemptions} time{'s' * (state.preemptions != 1)}" if state.preemptions else ""
    facts = {
        "job": f"{short_id(state.id)} {state.name}",
        "state": (_describe_state(state), STATE_COLOURS[state.state]),
        "hint": current_hint(state.hint, state) or None,
        "machines": _describe_machines(state),
        "attempt": f"{state.attempt}" + (f", stage {state.stage}" if state.stage else "") + preempted,
        **more,
        "release at": state.release_at and local_time(state.release_at),
    }
    for label, fact in facts.items():
        if fact is not None:
            text, colour = fact if isinstance(fact, tuple) else (str(fact), None)
            yield f"{label + ':':<13} {paint(text, colour)}"
    if failure := state.failure:
        yield f"{'failure:':<13} {paint(describe_failure(failure), FAILURE_COLOUR)}"
        if failure.hint:
            yield f"{'hint:':<13} {printable(current_hint(failure.hint, state))}"
    if changed:
        yield f"{'changed:':<13} {printable(changed)}"
    elif again := describe_retry(record):
        yield f"{'try again:':<13} {again}"
    if notice := held_notice(state):
        yield f"{'held:':<13} {printable(notice)}"


def _worker_lines(state: State, found: Found) -> Iterator[str]:
    if workers := _workers(state, found):
        yield from ("", "workers:")
    alike: dict[tuple[str, str], list[dict[str, JsonValue]]] = {}
    for worker in workers:
        alike.setdefault(_describe_worker(state, worker, found), []).append(worker)
    for (ending, measured), members in alike.items():
        shown = members
        if len(members) >= FOLDED:
            numbers = ranges(cast("int", worker["index"]) for worker in members)
            shown = [{"index": numbers, "address": f"{len(members)} workers"}]
        for worker in shown:
            line = f"  {worker['index']}  {printable(str(worker['address'] or '-'))}  "
            painted = paint(ending, FAILURE_COLOUR if ending.startswith("exit code ") and ending[10:] != "0" else None)
            yield line + painted + _cut(measured and f"  {printable(measured)}", len(line) + len(ending))


def _describe_worker(state: State, worker: Mapping[str, JsonValue], found: Found) -> tuple[str, str]:
    """Return how a worker's program ended, or that it runs; and what was measured there."""
    unfinished = "running" if worker["index"] in state.run.workers else "idle"
    code = "unknown" if worker["exit_code"] is None else worker["exit_code"]
    ending = f"exit code {code}" if worker["ended"] else unfinished
    return ending, "; ".join(finding.message for finding in found.get(cast("int", worker["index"]), []))


def _describe_machines(state: State) -> str:
    """Return what a job asks for, where, and what it holds of that."""
    workers = f"{state.workers} worker{'s' if state.workers != 1 else ''}"
    return ", ".join(
        filter(None, [state.machines.name if state.machines else "", state.accelerator, workers, state.zone])
    )


def _describe_state(state: State) -> str:
    """Return a job's state and why it is in it; the failure is on a line of its own."""
    why = state.why if state.failure is None else _without(state.why, state.failure)
    ended, count = len(state.endings), len(state.run.workers)
    if state.state == "running" and ended and not state.hint:  # else `why` says it
        why += f", ended on {'all' if ended == count else f'{ended} of {count}'} workers"
    return f"{state.state}: {why}{step_duration(state)}" if why else state.state


def _without(why: str, failure: Failure) -> str:
    """Return why a job has failed without the line that states its failure, which was shown already."""
    return why.removeprefix(failure.evidence).lstrip(";:, ")


def _files(state: State, collected: list[FilesCollected]) -> Iterator[str]:
    for event in collected:
        label = "result:" if state.run.succeeded and event.attempt == state.attempt else "collected:"
        yield f"{label:<13} attempt {event.attempt}: {printable(describe_files(event))}"
        for missing in event.missing:
            yield f"{'not fetched:':<13} {printable(missing)}"


def _collected(state: State) -> Iterator[str]:
    for worker, found in sorted(state.collected.items()):
        for plugin, data in found.items():
            yield from ("", f"read by {plugin} on worker {worker}:")
            for name, value in data.items():
                yield printable(f"  {name}: {value}")


def _resolved(resolved: Mapping[str, Mapping[str, JsonValue]]) -> Iterator[str]:
    """Yield what plugins have read from the environment, and from the config."""
    lines = [
        f"{word}.{name}: {values[name]}"
        for word, values in resolved.items()
        for name in _shown(values)
        if values.get(name) not in ("", None)
    ]
    if lines:
        yield f"{'resolved:':<13} {printable(', '.join(lines))}"


def _shown(values: Mapping[str, JsonValue]) -> list[str]:
    """Return the keys of a plugin's answer of `resolve` that concern a user, as it says."""
    shown = values.get("shown", [*values])
    return [str(name) for name in shown] if isinstance(shown, list) else []


def _attempt_lines(attempts: list[Attempt]) -> Iterator[str]:
    if not attempts:
        return
    earlier = f"  ({len(attempts) - LAST} earlier ones: tpux history)" if len(attempts) > LAST else ""
    yield ""
    yield _cut(f"attempts: {format_duration(sum(one.lasted for one in attempts))}   {LEGEND}{earlier}")
    rows = [*bars(attempts[-LAST:])]
    width = max(len(bar) for _, bar, _ in rows)
    for number, bar, after in rows:
        yield _cut(f"  {number:>2}  {bar:<{width}}  {printable(after)}")


def _event_lines(state: State, events: list[Event], first: int) -> Iterator[str]:
    if first:
        yield f"last {len(events) - first} of {len(events)} events (all: tpux show {short_id(state.id)} --events):"
    else:
        yield "events:"
    today = local_time(time.time())[:11]
    shown: Failure | None = None
    for event in events[first:]:
        if isinstance(event, StateChanged) and shown is not None:
            text = ": ".join(filter(None, [event.to, _without(event.why, shown)]))
        else:
            text = describe_event(event)
        if isinstance(event, AttemptEnded) and event.failure is not None and event.failure == state.failure:
            text = text.replace(f": {line}", "", 1) if (line := stated_line(event.failure)) else text  # it is above
        at = local_time(event.at)
        if sys.stdout.isatty():
            at = at.removeprefix(today)
            text = _cut(text, len(at) + 4)
        yield f"  {at}  {paint(text, _colour(event))}"
        shown = event.failure if isinstance(event, (AttemptEnded, Failed)) else None


def _colour(event: Event) -> str | None:
    if isinstance(event, StateChanged):
        return STATE_COLOURS[event.to]
    failed = isinstance(event, Failed) or (isinstance(event, AttemptEnded) and event.failure is not None)
    return FAILURE_COLOUR if failed else None


def _next_commands(state: State) -> list[str]:
    """Return the commands that a user may want now."""
    job = short_id(state.id)
    logs = [f"tpux logs {job} -n 50"] if state.attempt else []
    if not state.ended:
        inside = [f"tpux exec {job} COMMAND"] if state.machines and "exec" in added_commands() else []
        end = f"tpux wait {job}" if state.state == "stopping" else f"tpux stop {job}"
        return [f"tpux logs {job} -f", *inside, end]
    again = [] if state.state == "succeeded" else [f"tpux resume {job}"]
    return [*logs, *again, f"tpux rerun {job}", f"tpux delete {job}"]
