"""`tpux reboot`: stop jobs and start them again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tpux.cli.common import (
    DryRun,
    JobsArg,
    OfName,
    OfState,
    Yes,
    confirm,
    describe_jobs,
    new_app,
    say,
    select_jobs,
    short_id,
    short_ids,
)
from tpux.errors import TpuxError, UsageError

if TYPE_CHECKING:
    from tpux.store import Store
    from tpux.store.record import Record

app = new_app()

KEEP_FOR = 600.0
"""Seconds for which the machines are kept for the resume, even if tpu.keep_on_stop is shorter."""


@app.command(epilog="Example: tpux reboot 12 13 -y")
def reboot(
    jobs: JobsArg = None,
    yes: Yes = False,
    state: OfState = None,
    name: OfName = None,
    dry_run: DryRun = False,
) -> None:
    """Stop jobs' programs and resume them on the same machines, from their last checkpoint."""
    from tpux.store import Store

    store = Store()
    records = select_jobs(store, jobs or [], state=state, name=name)
    if done := [short_id(record.id) for record in records if record.refresh().state == "succeeded"]:
        raise UsageError(f"job {done[0]} has succeeded", hint=f"start it from scratch: tpux rerun {done[0]}")
    if not records:
        return
    if dry_run:
        say(f"would reboot:\n{describe_jobs(records)}")
        return
    store.require_in_place()
    confirm(f"{describe_jobs(records)}\nStop and resume job {short_ids(records)}?", yes=yes)
    stop_and_resume(store, records)


def stop_and_resume(store: Store, records: Sequence[Record], *, skip_setup: bool = False) -> None:
    """Stop jobs that have not ended, wait until they have, and request their resume on the same machines.

    A job that turns out to have succeeded is left as it is, and named; if all have, that is an error.

    Args:
        store: the store of the jobs.
        records: the jobs.
        skip_setup: set up only what was updated since the last attempt.

    Raises:
        UsageError: all jobs have succeeded.
        TpuxError: a job does not stop in time.
    """
    from tpux.cli.follow import wait_until_ended
    from tpux.cli.restart_request import request_restart
    from tpux.cli.stop import STOP_TIMEOUT
    from tpux.store import requests
    from tpux.supervisor import client

    for record in records:
        if not record.refresh().ended:
            # Not `keep`: if this command dies before the resume, the machines must still be released.
            requests.write(record, "stop", keep_for=KEEP_FOR)
    client.notify(store)
    for record in records:
        if wait_until_ended(store, record, timeout=STOP_TIMEOUT) is None:
            job = short_id(record.id)
            raise TpuxError(f"job {job} is still stopping", hint=f"tpux wait {job}; tpux resume {job}")
    stopped = [record for record in records if record.refresh().state != "succeeded"] or records
    for record in records:
        if record not in stopped:
            job = short_id(record.id)
            say(f"job {job} has succeeded before it was stopped; from scratch: tpux rerun {job}")
    request_restart("resume", [record.id for record in stopped], skip_setup=skip_setup)
