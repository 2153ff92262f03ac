"""`tpux delete`: stop jobs, give their machines back, forget them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tpux.cli.common import DryRun, JobsArg, OfName, OfState, Yes, confirm, new_app, say, select_jobs
from tpux.errors import TpuxError

if TYPE_CHECKING:
    from tpux.store import Store
    from tpux.store.record import Record

app = new_app()


@app.command(epilog="Example: tpux delete 12 -y")
def delete(
    jobs: JobsArg = None,
    yes: Yes = False,
    state: OfState = None,
    name: OfName = None,
    dry_run: DryRun = False,
) -> None:
    """Stop jobs, give their machines back, and remove their records and logs.

    A record goes only once its machines are confirmed to be given back.
    """
    from tpux.store import Store

    store = Store()
    records = select_jobs(store, jobs or [], state=state, name=name)
    ids = ", ".join(record.directory.name for record in records)
    if not records:
        return
    if dry_run:
        say(f"would delete {ids}")
        return
    for record in records:
        record.refresh()  # one that cannot be read may hold machines: it is not dropped blindly
    confirm(f"Delete job {ids}, with all logs?", yes=yes)
    remove(store, records)


PATIENCE = 600.0


def remove(store: Store, records: Sequence[Record]) -> None:
    """Write down that these jobs are to go, and wait until they are gone.

    Raises:
        TpuxError: one was still there after ten minutes.
    """
    from tpux.cli.follow import LOOK_EVERY, REVIVE_EVERY
    from tpux.store import requests
    from tpux.supervisor import client

    for record in records:
        requests.write(record.directory, "delete")
    client.notify(store)
    start = looked = time.monotonic()
    left = list(records)
    while left:
        for record in [record for record in left if not record.directory.is_dir()]:
            say(f"job {record.directory.name} is deleted")
            left.remove(record)
        now = time.monotonic()
        if left and now - start > PATIENCE:
            what = left[0].refresh().why
            raise TpuxError(f"still there after {PATIENCE:.0f} s: {what}", where=f"job {left[0].directory.name}")
        if now - looked > REVIVE_EVERY:
            looked = now
            client.ensure_running(store)
        time.sleep(LOOK_EVERY if left else 0)
