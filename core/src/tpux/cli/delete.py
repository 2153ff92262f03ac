"""`tpux delete`: stop jobs, release their machines, remove their records."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from tpux.cli.common import (
    DryRun,
    JobsArg,
    OfName,
    OfState,
    OfTag,
    Yes,
    confirm,
    describe_jobs,
    describe_release,
    new_app,
    say,
    select_jobs,
    short_id,
    short_ids,
)
from tpux.errors import TpuxError

if TYPE_CHECKING:
    from tpux.store import Store
    from tpux.store.record import Record
    from tpux.store.state import State

app = new_app()

DELETE_TIMEOUT = 600.0
"""Seconds to wait until the records are gone; the supervisor continues afterwards."""
STUCK_AFTER = 5.0
"""Seconds that the supervisor has for another try, before a deletion counts as one that it cannot carry out."""


@app.command(epilog="Example: tpux delete 12 -y")
def delete(
    jobs: JobsArg = None,
    yes: Yes = False,
    force: Annotated[
        bool, typer.Option("--force", help="Remove the record even if the machines cannot be released.")
    ] = False,
    state: OfState = None,
    name: OfName = None,
    tag: OfTag = None,
    dry_run: DryRun = False,
) -> None:
    """Stop jobs, release their machines, and remove their records, logs and collected files.

    A record is removed only after the release of its machines has been confirmed. If that can only be waited for,
    because the cloud has not answered a request for machines, the supervisor waits and deletes the job then.

    With --force, machines that cannot be released (their plugin is gone, the release keeps failing) remain, and may
    cost money: release them by hand.
    """
    from tpux.store import Store

    store = Store()
    records = select_jobs(store, jobs or [], state=state, name=name, tags=tag)
    if not records:
        return
    if dry_run:
        say(f"would delete with all logs:\n{describe_jobs(records, releases=True)}")
        return
    store.require_in_place()
    for record in records:
        record.refresh()  # raises for an unreadable record: it may hold machines and must not be removed blindly
        if force and record.state.requested:
            job, machines = short_id(record.id), record.describe_machines()
            removed = f"the record of job {job} is removed and they remain: {machines}"
            say(f"warning: if its machines cannot be released, {removed}")
    confirm(f"{describe_jobs(records, releases=True)}\nDelete job {short_ids(records)} and all its logs?", yes=yes)
    delete_jobs(store, records, force=force)


def delete_jobs(store: Store, records: Sequence[Record], *, force: bool = False) -> None:
    """Request the deletion of jobs and wait until their records are gone, or only their release is waited for.

    Args:
        store: the store of the jobs.
        records: the jobs.
        force: remove the records even if the machines cannot be released.

    Raises:
        TpuxError: a record was still there after `DELETE_TIMEOUT`, a plugin's hook does not return, or the user must do
            something before the machines can be released.
    """
    from tpux.store import requests
    from tpux.supervisor import client

    released = {record.id: describe_release(record, ("released", "kept")) for record in records}
    written = {record: requests.write(record, "delete", force=force) for record in records}
    client.notify(store)
    requested = time.monotonic()
    for record, number in written.items():
        _wait_until_deleted(store, record, number, requested, released[record.id], force=force)


def _wait_until_deleted(
    store: Store, record: Record, number: int, requested: float, released: str, *, force: bool
) -> None:
    """Wait until a job's record is gone, or only the release of its machines is waited for, and say so.

    Args:
        store: the store of the job.
        record: the job.
        number: the number of the request.
        requested: when the deletion was requested (monotonic).
        released: what happens to the machines, for people.
        force: the record is removed even if the machines cannot be released.
    """
    from tpux.api.watch import watch

    job = short_id(record.id)
    timeout = requested + DELETE_TIMEOUT - time.monotonic()
    for state in watch(store, record, timeout=timeout, warn=say, notice=say):
        # It is deleted when its release ends, which nothing can hasten.
        if state.ended and state.last_request.get("action") == "delete" and state.waiting_until is not None:
            say(f"job {job}: {state.why}; the supervisor deletes the job after that")
            return
        # While the job is stopping, the supervisor cuts a blocked hook off; nothing can end a release.
        if not force:
            if state.ended and state.last_request_number >= number:
                _raise_if_blocked(store, state)
            _raise_if_stuck(state, requested=requested)
    if record.directory.is_dir():
        raise TpuxError(f"not deleted after {DELETE_TIMEOUT:.0f} s: {record.state.why}", where=f"job {job}")
    remains = store.unreleased(record.id)
    deleted = f"deleted; {released}" if released else "deleted"
    say(f"job {job} {f'removed; {remains}' if remains else deleted}")


def _raise_if_blocked(store: Store, state: State) -> None:
    """Raise an error if a hook of a job whose deletion has begun does not return."""
    from tpux.supervisor import client

    if why := client.current_report(store).blocked.get(state.id):
        raise TpuxError(
            f"not deleted: {why}",
            where=f"job {short_id(state.id)}",
            hint=f"its machines may still exist, so its record is kept; `tpux delete {short_id(state.id)}` tries again",
        )


def _raise_if_stuck(state: State, *, requested: float) -> None:
    """Raise an error if a job cannot be deleted before the user has done something.

    Args:
        state: the job.
        requested: when the deletion was requested (monotonic).
    """
    if not state.hint or not (state.ended or state.state == "stopping") or time.monotonic() - requested < STUCK_AFTER:
        return
    job = short_id(state.id)
    raise TpuxError(
        f"not deleted: {state.why}",
        where=f"job {job}",
        hint=f"{state.hint}; the supervisor then deletes the job. `tpux delete {job} --force` removes its record"
        " although its machines may remain",
    )
