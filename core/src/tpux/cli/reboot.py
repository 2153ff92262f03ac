"""`tpux reboot`: stop jobs and start them again."""

from __future__ import annotations

from tpux.cli.common import DryRun, JobsArg, OfName, OfState, Yes, confirm, new_app, say, select_jobs
from tpux.errors import TpuxError, UsageError

app = new_app()

KEEP_FOR = 600.0
"""Seconds that the machines wait for the resume at least, whatever tpu.keep_on_stop says."""


@app.command(epilog="Example: tpux reboot 12 13 -y")
def reboot(
    jobs: JobsArg = None,
    yes: Yes = False,
    state: OfState = None,
    name: OfName = None,
    dry_run: DryRun = False,
) -> None:
    """Stop jobs' programs and resume them on the same machines, from their last checkpoint."""
    from tpux.cli.follow import until_ended
    from tpux.cli.restart import start_again
    from tpux.cli.stop import PATIENCE
    from tpux.store import Store, requests
    from tpux.supervisor import client

    store = Store()
    records = select_jobs(store, jobs or [], state=state, name=name)
    if done := [record.directory.name for record in records if record.refresh().state == "succeeded"]:
        raise UsageError(f"job {done[0]} has succeeded", hint=f"`tpux rerun {done[0]}` starts it from scratch")
    ids = [record.directory.name for record in records]
    if not records:
        return
    if dry_run:
        say(f"would reboot {', '.join(ids)}")
        return
    confirm(f"Stop and resume job {', '.join(ids)}?", yes=yes)
    for record in records:
        if not record.refresh().ended:
            # Not `keep`: should this command die before the resume, nobody would ever give the machines back.
            requests.write(record.directory, "stop", keep_for=KEEP_FOR)
    client.notify(store)
    for record in records:
        if until_ended(store, record, timeout=PATIENCE) is None:
            job = record.directory.name
            raise TpuxError(f"job {job} is still stopping", hint=f"tpux wait {job}; tpux resume {job}")
    start_again("resume", ids, None, None)
