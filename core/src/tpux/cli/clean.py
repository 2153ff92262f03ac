"""`tpux clean`: remove the records of jobs that have ended."""

from __future__ import annotations

from typing import Annotated

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

app = new_app()


@app.command(epilog="Example: tpux clean --failed --dry-run")
def clean(
    finished: Annotated[bool, typer.Option("--finished", help="Jobs in the state succeeded (the default).")] = False,
    failed: Annotated[bool, typer.Option("--failed", help="Jobs in the state failed.")] = False,
    stopped: Annotated[bool, typer.Option("--stopped", help="Jobs in the state stopped.")] = False,
    all_: Annotated[bool, typer.Option("--all", help="All jobs that have ended.")] = False,
    name: OfName = None,
    tag: OfTag = None,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Remove the records and logs of jobs that have ended, and release the machines that they still hold."""
    from tpux.store import Store

    selected = {"succeeded": finished or not (failed or stopped), "failed": failed, "stopped": stopped}
    store = Store()
    records = [
        record
        for record, job in readable(store)
        if job.ended and (all_ or selected[job.state]) and matches(job, None, name) and has_tags(record, tag)
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
