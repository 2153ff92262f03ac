"""`tpux list`: show the jobs."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from tpux.cli.common import (
    MANUAL_RELEASE,
    STATE_COLOURS,
    Json,
    OfName,
    OfState,
    OfTag,
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
from tpux.console import format_size, paint, printable
from tpux.durations import format_age
from tpux.errors import TpuxError
from tpux.tables import print_table

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
"""Number of ended jobs shown in addition to the active ones."""
COLUMNS = (
    *("id", "name", "state", "accelerator", "zone", "workers", "attempt", "stage"),
    *("age", "held until", "disk", "progress", "why"),
)
REQUIRED = {"id", "name", "state"}
DROPPED_FIRST = ("stage", "workers", "attempt", "zone", "accelerator", "progress")
LEAST_WIDTHS = {"why": 20, "name": 8}


@app.command(name="list", epilog="Example: tpux list --state failed --name 'lr-*'")
def show_jobs(
    all_: Annotated[
        bool, typer.Option("--all", "-a", help="Show all jobs, not only the active and the last 30 ended ones.")
    ] = False,
    users: Annotated[bool, typer.Option("--all-users", help="Show the jobs of all users of this store.")] = False,
    state: OfState = None,
    name: OfName = None,
    tag: OfTag = None,
    disk: Annotated[bool, typer.Option("--disk", help="Show how much space each job takes on this machine.")] = False,
    json: Json = False,
) -> None:
    """Show the active jobs and the last 30 that have ended."""
    from tpux.store import Store
    from tpux.supervisor import client, orphans

    store = Store()
    jobs = [
        job
        for user in (store.users() if users else [store.user])
        for record, job in readable(store, user)
        if matches(job, state, name) and has_tags(record, tag)
    ]
    if any(not job.done for job in jobs if job.user == store.user):
        client.ensure_running(store)
    orphans.search_in_background(store, jobs)
    blocked = client.current_report(store)
    jobs = [blocked.applied_to(job) for job in jobs]
    ended = [id(job) for job in jobs if job.ended]
    old = set() if all_ else {*ended[:-LAST]}
    shown = [job for job in jobs if id(job) not in old]
    rows = [{**summary(job), "progress": _progress(store, job), "tags": _tags(store, job)} for job in shown]
    if disk:
        _add_disk_usage(store, rows)
    for row, job in zip(rows, shown, strict=True):
        row["why"] = f"{row['why']}{'' if json else step_duration(job)}"
    if json:
        emit(rows)
    elif shown:
        print_table(
            {column: [_cell(column, row) for row in rows] for column in COLUMNS},
            always=REQUIRED,
            drop=DROPPED_FIRST,
            shorten=LEAST_WIDTHS,
            painters={"state": lambda state: paint(state, STATE_COLOURS[state])},
        )
        if len(shown) < len(jobs):
            typer.echo(f"({len(jobs) - len(shown)} older jobs: tpux list --all)", err=True)
    elif state or name or tag:
        say("no matching jobs")
    else:
        typer.echo("no jobs yet; create one: tpux run CONFIG", err=True)
    if not json and (report := orphans.last_report(store)):
        seen = datetime.fromtimestamp(report.at).strftime("%H:%M")
        for orphan in report.orphans:
            echo(f"{orphan.name} in {orphan.where} ({orphan.what} at {seen}) belongs to no job: {orphan.command}")


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
    value = job.get({"age": "created_at", "held until": "held_until"}.get(column, column))
    if column == "progress":
        return describe_progress(value) or "-"
    text = "-" if value in {None, ""} else printable(str(value))
    if column == "id":
        return short_id(text)
    if column == "age":
        return format_age(time.time() - datetime.fromisoformat(text).timestamp())
    if column == "held until" and text not in {"-", MANUAL_RELEASE}:
        at = datetime.fromisoformat(text).timestamp()
        return "releasing" if at <= time.time() else _clock_time(at)
    if column == "disk" and isinstance(value, int):
        return format_size(value)
    if column == "why":
        text = _PLUGIN_ERROR.sub(r"\3 (\1): ", text)
    return next(iter(text.splitlines()), "-")


def _clock_time(at: float) -> str:
    """Return a time of this machine's time zone, with its date if that is not today's."""
    time_, now = datetime.fromtimestamp(at), datetime.now()
    return f"{time_:%H:%M}" if time_.date() == now.date() else f"{time_:%m-%d %H:%M}"
