"""`tpux clean`: remove the records of jobs that have ended."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from tpux.cli.common import (
    DryRun,
    OfName,
    OfTag,
    Yes,
    confirm,
    describe_jobs,
    has_tags,
    matches,
    new_app,
    readable,
    say,
    short_ids,
)
from tpux.cli.delete import delete_jobs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpux.store.record import Record

app = new_app()


@app.command(epilog="Example: tpux clean --failed --dry-run")
def clean(
    finished: Annotated[bool, typer.Option("--finished", help="Jobs in the state succeeded (the default).")] = False,
    failed: Annotated[bool, typer.Option("--failed", help="Jobs in the state failed.")] = False,
    stopped: Annotated[bool, typer.Option("--stopped", help="Jobs in the state stopped.")] = False,
    rerun: Annotated[bool, typer.Option("--rerun", help="Also those that a newer job has replaced.")] = False,
    all_: Annotated[bool, typer.Option("--all", help="All jobs that have ended.")] = False,
    name: OfName = None,
    tag: OfTag = None,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Remove the records and logs of jobs that have ended, and release the machines that they still hold.

    With --rerun also those that were run again as another job, however they ended: a newer job has the same config
    with the same values, or has taken over their machines. (A job that was resumed or run again itself is one job.)
    """
    from tpux.store import Store

    selected = {"succeeded": finished or not (failed or stopped), "failed": failed, "stopped": stopped}
    store = Store()
    every = [*readable(store)]
    replaced = _replaced([record for record, _ in every]) if rerun else set[str]()
    records = [
        record
        for record, job in every
        if job.ended
        and (all_ or selected[job.state] or record.id in replaced)
        and matches(job, None, name)
        and has_tags(record, tag)
    ]
    if not records:
        say("nothing to clean")
        return
    if dry_run:
        say(f"would remove with all logs:\n{describe_jobs(records, releases=True)}")
        return
    store.require_in_place()
    confirm(f"{describe_jobs(records, releases=True)}\nRemove job {short_ids(records)} and all its logs?", yes=yes)
    delete_jobs(store, records)


def _replaced(records: Sequence[Record]) -> set[str]:
    """Return the ids of the jobs, oldest first, whose config a newer one has, or whose machines it has taken over."""
    from tpux.store import files

    replaced, newer = set[str](), set[str]()
    for record in reversed(records):
        stored = files.load(record.config_directory / "resolved.json") or {}
        config = json.dumps([stored.get("path"), stored.get("config")], sort_keys=True)
        if stored and config in newer:
            replaced.add(record.id)
        newer.add(config)
        replaced.add(record.state.transfer_from)
    return replaced
