"""`tpux stop`: end jobs' programs."""

from __future__ import annotations

from typing import Annotated

import typer

from tpux.cli.common import DryRun, JobsArg, OfName, OfState, new_app, say, select_jobs
from tpux.errors import UsageError

app = new_app()

PATIENCE = 60.0
"""Seconds that the command waits for the end; the programs may take longer."""


@app.command(epilog="Example: tpux stop 12 13 --release")
def stop(
    jobs: JobsArg = None,
    release: Annotated[bool, typer.Option("--release", help="Give the machines back now.")] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the machines for good.")] = False,
    wait: Annotated[bool, typer.Option(help="Wait until the programs have ended.")] = True,
    state: OfState = None,
    name: OfName = None,
    dry_run: DryRun = False,
) -> None:
    """Stop jobs: their programs get SIGTERM, and SIGKILL after command.grace_period.

    The machines wait for `tpux resume` for tpu.keep_on_stop, one hour unless the config says otherwise.
    """
    from tpux.cli.follow import until_ended
    from tpux.store import Store, requests
    from tpux.supervisor import client

    if release and keep:
        raise UsageError("--release and --keep are opposites")
    store = Store()
    records = select_jobs(store, jobs or [], state=state, name=name)
    for record in records:
        if dry_run:
            say(f"would stop job {record.directory.name} ({record.refresh().state})")
        elif record.finished() and not (release or keep):
            say(f"job {record.directory.name} has already ended: {record.refresh().state}")
        else:
            requests.write(record.directory, "stop", release=release, keep=keep)
    if dry_run:
        return
    if records:
        client.notify(store)
    for record in records if wait else []:
        if (ended := until_ended(store, record, timeout=PATIENCE)) is None:
            say(f"job {record.directory.name} is still stopping: `tpux wait {record.directory.name}` waits on")
        else:
            say(f"job {ended.id} {ended.state}")
