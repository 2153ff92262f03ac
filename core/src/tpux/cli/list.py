"""`tpux list`: show the jobs."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from tpux.cli.common import (
    STATE_COLOURS,
    Json,
    OfName,
    OfState,
    OfTag,
    describe_held,
    describe_progress,
    echo,
    emit,
    has_tags,
    iso,
    matches,
    new_app,
    readable,
    say,
    short_id,
    step_duration,
    summary,
)
from tpux.console import echo_painted, format_size, paint, printable
from tpux.durations import format_age
from tpux.errors import TpuxError, UsageError
from tpux.store.open_jobs import is_open
from tpux.tables import table_lines

if TYPE_CHECKING:
    from tpux.model.json import JsonValue
    from tpux.store import Store
    from tpux.store.state import State


app = new_app()

_PLUGIN_ERROR = re.compile(
    r"\bplugin (\S+)( \([^)]*\))? (?:failed in|gave a wrong answer from) (?:its )?([^:]+?)(?: of plugin \S+)?: "
)
"""What a message of `tpux.plugin.guard` begins with: in a narrow column the hook and the error come first."""
LAST = 30
"""Number of closed jobs shown in addition to the open ones."""
WATCH_EVERY = 2.0
"""Seconds between two looks at the jobs."""
COLUMNS = (
    *("id", "name", "state", "for", "tpu", "zone", "workers", "try", "stage", "progress", "held"),
    *("tags", "created", "disk", "why"),
)
REQUIRED = ("id", "name", "state", "for")
FIELDS = {"tpu": "accelerator", "try": "attempt", "created": "created_at", "for": "since"}
"""The fields of `summary` whose columns have other heads."""
DROPPED_FIRST = ("tags", "zone", "created", "workers", "stage")
LEAST_WIDTHS = {"why": 20}
LAST_WIDTHS = {"why": 8, "name": 12, "try": 0, "held": 0, "progress": 0, "tpu": 0}
"""In this order, where the terminal is too narrow. ID, STATE and FOR are never cut."""


def known_columns(text: str | None) -> str | None:
    """Return a list of columns if all are known, for an option.

    Raises:
        UsageError: one is not.
    """
    for name in text.split(",") if text else ():
        if name not in COLUMNS:
            from tpux.plugin.catalog import did_you_mean

            hint = did_you_mean(name, COLUMNS) or f"the columns are {', '.join(COLUMNS)}"
            raise UsageError(f"columns: unknown column {name!r}", hint=hint)
    return text


@app.command(
    name="list", epilog="Example: tpux list --state failed --name 'lr-*'\n\nExample: tpux list -w -c id,state,why"
)
def show_jobs(
    all_: Annotated[
        bool, typer.Option("--all", "-a", help="Show all jobs, not only the open and the last ended ones.")
    ] = False,
    users: Annotated[bool, typer.Option("--all-users", help="Show the jobs of all users of this store.")] = False,
    state: OfState = None,
    name: OfName = None,
    tag: OfTag = None,
    limit: Annotated[
        int, typer.Option(min=0, metavar="N", help="How many ended jobs are shown, the newest ones.")
    ] = LAST,
    columns: Annotated[
        str | None,
        typer.Option("-c", "--columns", metavar="LIST", help="These columns: id,state,why", callback=known_columns),
    ] = None,
    watch: Annotated[bool, typer.Option("-w", "--watch", help="Show the table until Ctrl-C, as it changes.")] = False,
    disk: Annotated[bool, typer.Option("--disk", help="Show how much space each job takes on this machine.")] = False,
    json: Json = False,
) -> None:
    """Show the jobs that are active or hold machines, and the last 30 of the others."""
    from tpux.store import Store
    from tpux.store.leases import active_of_others
    from tpux.supervisor import client, orphans

    store = Store()
    chosen = tuple(columns.split(",")) if columns else None
    selected = partial(
        _select, store, store.users() if users else [store.user], state, name, tag, limit=None if all_ else limit
    )
    if watch:
        if json or not sys.stdout.isatty():
            raise UsageError("--watch needs a terminal and no --json", hint="for scripts: tpux wait, tpux list --json")
        from tpux.cli.screen import repaint

        repaint(lambda: _table(_rows(store, selected()[0], disk=False), chosen), every=WATCH_EVERY)
    jobs, older = selected()
    if any(not job.done for job in jobs if job.user == store.user):
        client.ensure_running(store)
    orphans.search_in_background(store, jobs)
    rows = _rows(store, jobs, disk=disk, durations=not json)
    if json:
        emit(rows)
        return
    for line in _table(rows, chosen) if rows else ():
        echo_painted(line)
    _say_what_is_left_out(rows, older, filtered=bool(state or name or tag))
    if theirs := active_of_others(store) if users else []:
        whose = ", ".join(dict.fromkeys(file.user for file in theirs))
        count = f"{len(theirs)} active job{'s' if len(theirs) > 1 else ''} of {whose}"
        typer.echo(f"({count}; only their owners can read them; tpux find says who uses what)", err=True)
    if report := orphans.last_report(store):
        seen = datetime.fromtimestamp(report.at).strftime("%H:%M")
        for orphan in report.orphans:
            echo(f"{orphan.name} in {orphan.where} ({orphan.what} at {seen}) belongs to no job: {orphan.command}")


def _say_what_is_left_out(rows: list[dict[str, JsonValue]], older: int, *, filtered: bool) -> None:
    if not rows and filtered:
        say("no matching jobs")
    elif not rows and not older:
        typer.echo("no jobs yet; create one: tpux run CONFIG", err=True)
    if older:
        typer.echo(f"({older} older jobs: tpux list --all)", err=True)


def _select(
    store: Store,
    users: Sequence[str],
    state: str | None,
    name: str | None,
    tags: list[str] | None,
    *,
    limit: int | None,
) -> tuple[list[State], int]:
    """Return the jobs to show, oldest first, and how many older ones are left out.

    Without a filter only the open jobs and as many others as are shown are read.
    """
    jobs: list[State] = []
    older = 0
    for user in users:
        ids, others = store.ids(user), LAST if limit is None else limit
        opened = store.open_ids(user)
        if limit is not None and state is None and name is None and not tags:
            closed = [job for job in ids if job not in opened]
            left_out = {*closed[: len(closed) - others]}
            older += len(left_out)
            ids = [job for job in ids if job not in left_out]
        found = [
            job for record, job in readable(store, user, ids) if matches(job, state, name) and has_tags(record, tags)
        ]
        closed = [job.id for job in found if not is_open(job)]
        left_out = set() if limit is None else {*closed[: max(0, len(closed) - others)]}
        older += len(left_out)
        jobs += [job for job in found if job.id not in left_out]
    return jobs, older


def _rows(store: Store, jobs: list[State], *, disk: bool, durations: bool = True) -> list[dict[str, JsonValue]]:
    """Return the fields of jobs that are shown, as JSON data."""
    from tpux.supervisor import client

    blocked = client.current_report(store)
    rows = []
    for job in map(blocked.applied_to, jobs):
        row = {**summary(job), "progress": _progress(store, job), "tags": _tags(store, job)}
        row["why"] = f"{row['why']}{step_duration(job) if durations else ''}"
        if durations:  # for people
            row["held"] = describe_held(job)
        rows.append(row)
    if disk:
        _add_disk_usage(store, rows)
    return rows


def _table(rows: list[dict[str, JsonValue]], columns: tuple[str, ...] | None) -> Iterator[str]:
    return table_lines(
        {column: [_cell(column, row) for row in rows] for column in columns or COLUMNS},
        columns or REQUIRED,
        DROPPED_FIRST,
        {},
        LEAST_WIDTHS,
        LAST_WIDTHS,
        {"state": lambda state: paint(state, STATE_COLOURS[state.strip()])},
    )


def _progress(store: Store, job: State) -> dict[str, JsonValue] | None:
    """Return how far a job's program has come, for `--json`; None if that is unknown."""
    from tpux.store import progress

    found, at = progress.load(store.record(job.id, job.user).directory, job)
    return {**found.to_json(), "at": None if at is None else iso(at)} if found else None


def _tags(store: Store, job: State) -> list[JsonValue]:
    from tpux.store.tags import load

    return [*load(store.record(job.id, job.user).directory)]


def _add_disk_usage(store: Store, rows: list[dict[str, JsonValue]]) -> None:
    """Add to each job how many bytes it takes on this machine, as `disk`; null if that is unknown."""
    from tpux.lifecycle.garbage import disk_usage
    from tpux.plugin.manager import Plugins

    plugins = Plugins()
    for row in rows:
        record = store.record(str(row["id"]), str(row["user"]))
        try:
            row["disk"] = disk_usage(store, record, plugins)
        except (TpuxError, OSError) as error:
            row["disk"] = None
            say(f"warning: job {short_id(record.id)}: its size is unknown: {error}")


def _cell(column: str, job: Mapping[str, JsonValue]) -> str:
    value = job.get(FIELDS.get(column, column))
    if column == "progress":
        text = describe_progress(value) or "-"
        return text.partition(", ")[0] if sys.stdout.isatty() else text
    if column == "tags" and isinstance(value, list):
        return printable(",".join(map(str, value))) or "-"
    text = "-" if value in {None, ""} else printable(str(value))
    if column == "id":
        return short_id(text)
    if column in {"for", "created"}:
        return format_age(time.time() - datetime.fromisoformat(text).timestamp())
    if column == "disk" and isinstance(value, int):
        return format_size(value)
    if column == "why":
        text = "-" if text == f"attempt {job['attempt']}" else text  # while it runs; the column TRY has it
        text = _PLUGIN_ERROR.sub(r"\3 (\1): ", text)
    return next(iter(text.splitlines()), "-")
