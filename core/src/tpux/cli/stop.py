"""`tpux stop`: stop jobs."""

from __future__ import annotations

from typing import Annotated

import typer

from tpux.cli.common import DryRun, JobsArg, OfName, OfState, held_notice, new_app, say, select_jobs, short_id
from tpux.errors import UsageError

app = new_app()

STOP_TIMEOUT = 60.0
"""Seconds for which the command waits; the programs may take longer to end."""


@app.command(epilog="Example: tpux stop 12 13 --release")
def stop(
    jobs: JobsArg = None,
    release: Annotated[bool, typer.Option("--release", help="Release the machines now.")] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the machines until they are released by hand.")] = False,
    wait: Annotated[bool, typer.Option(help="Wait until the programs have ended.")] = True,
    state: OfState = None,
    name: OfName = None,
    dry_run: DryRun = False,
) -> None:
    """Stop jobs: their programs get SIGTERM, and SIGKILL after command.grace_period.

    The machines are kept for `tpux resume` for tpu.keep_on_stop, one hour by default.
    """
    from tpux.cli.follow import wait_until_ended
    from tpux.store import Store, requests
    from tpux.store.record import Record
    from tpux.supervisor import client

    if release and keep:
        raise UsageError("--release and --keep exclude each other")
    store = Store()
    records = select_jobs(store, jobs or [], state=state, name=name)
    requested: dict[Record, str] = {}
    for record in records:
        if dry_run:
            say(f"would stop job {short_id(record.id)} ({record.refresh().state})")
        elif record.finished() and not (release or keep):
            say(f"job {short_id(record.id)} has already ended: {record.refresh().state}")
        else:
            requested[record] = requests.write(record.directory, "stop", release=release, keep=keep)
    if requested:
        client.notify(store)
    for record, request in requested.items():
        shown = short_id(record.id)
        if not wait:
            say(f"job {shown}: stop requested")
        elif (ended := wait_until_ended(store, record, timeout=STOP_TIMEOUT, request=request)) is None:
            say(f"job {shown} is still stopping; wait for it: tpux wait {shown}")
        else:
            say(f"job {shown} {ended.state}")
            if notice := held_notice(ended):
                say(notice)
