"""`tpux clean`: forget jobs that have ended."""

from __future__ import annotations

from typing import Annotated

import typer

from tpux.cli.common import DryRun, OfName, Yes, confirm, matches, new_app, readable, say
from tpux.cli.delete import remove

app = new_app()


@app.command(epilog="Example: tpux clean --failed --dry-run")
def clean(
    finished: Annotated[bool, typer.Option("--finished", help="Those that succeeded (the default).")] = False,
    failed: Annotated[bool, typer.Option("--failed", help="Those that failed.")] = False,
    stopped: Annotated[bool, typer.Option("--stopped", help="Those that were stopped.")] = False,
    all_: Annotated[bool, typer.Option("--all", help="All that have ended.")] = False,
    name: OfName = None,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Remove the records and logs of jobs that have ended, and give back what machines they still keep."""
    from tpux.store import Store

    picked = {"succeeded": finished or not (failed or stopped), "failed": failed, "stopped": stopped}
    store = Store()
    records = [
        record
        for record, job in readable(store)
        if job.ended and (all_ or picked[job.state]) and matches(job, None, name)
    ]
    if not records:
        say("nothing to clean")
        return
    ids = ", ".join(record.directory.name for record in records)
    if dry_run:
        say(f"would remove {ids}")
        return
    confirm(f"Remove job {ids}, with all logs?", yes=yes)
    remove(store, records)
