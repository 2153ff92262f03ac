"""`tpux stop`: stop jobs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from tpux.cli.common import DryRun, JobsArg, OfName, OfState, held_notice, new_app, say, select_jobs, short_id
from tpux.errors import UsageError

if TYPE_CHECKING:
    from tpux.store import Store
    from tpux.store.record import Record
    from tpux.store.state import State

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
    from tpux.supervisor import client

    if release and keep:
        raise UsageError("--release and --keep exclude each other")
    store = Store()
    records = select_jobs(store, jobs or [], state=state, name=name)
    requested: dict[Record, tuple[int, bool]] = {}  # the request, and whether the job had ended
    for record in records:
        requests.require_not_deleted(record)
        if dry_run:
            say(f"would stop job {short_id(record.id)} ({record.refresh().state})")
        elif record.finished() and not (release or keep):
            say(f"job {short_id(record.id)} has already ended: {record.refresh().state}")
        else:
            had_ended = record.refresh().ended
            if keep and _release_requested(record):
                say(f"job {short_id(record.id)}: --keep cancels the release of its machines")
            requested[record] = requests.write(record, "stop", release=release, keep=keep), had_ended
    if requested:
        client.notify(store)
    for record, (request, had_ended) in requested.items():
        shown = short_id(record.id)
        if not wait:
            say(f"job {shown}: stop requested")
        elif (ended := wait_until_ended(store, record, timeout=STOP_TIMEOUT, request=request)) is None:
            say(f"job {shown} is still stopping; wait for it: tpux wait {shown}")
        else:
            _report_end(store, record, ended, release=release, had_ended=had_ended)


def _release_requested(record: Record) -> bool:
    """Return whether a user has requested the release of a job's machines, and it has not begun."""
    from tpux.store import requests

    state = record.refresh()
    stopping = state.state == "stopping" or state.release_promised
    promised = stopping and state.last_request.get("release") is True and not state.releasing
    return promised or any(request.release for request in requests.pending(record))


def _report_end(store: Store, record: Record, ended: State, *, release: bool, had_ended: bool) -> None:
    """Print how a job has ended, and what becomes of its machines, for whose release it waits if it is asked for."""
    from tpux.store import requests

    text = f"job {short_id(record.id)} {'had already ended: ' if had_ended else ''}{ended.state}"
    if release:
        if _wait_until_released(store, record):
            say(f"{text}; its machines are released")
        elif (state := record.refresh()).hint:
            say(f"{text}; {state.why}. {state.hint}")
        else:
            say(f"{text}; its machines are still being released: tpux show {short_id(record.id)}")
        return
    more = f": {ended.why}" if ended.state == "stopped" and ended.why not in {"", requests.STOPPED} else ""
    say(f"{text}{more}")
    if notice := held_notice(ended):
        say(notice)
    elif ended.releasing:
        say(f"its machines are being released, which cannot be cancelled any more: tpux show {short_id(record.id)}")


def _wait_until_released(store: Store, record: Record) -> bool:
    """Wait until an ended job holds no machines, so that the next command finds it so.

    Returns:
        Whether they are released; False after `STOP_TIMEOUT`, and at once if the release can only be waited for, or the
        user must do something before.
    """
    from tpux.cli.follow import POLL_INTERVAL, SupervisorWatchdog
    from tpux.supervisor import client

    start = time.monotonic()
    watchdog = SupervisorWatchdog(store)
    while record.directory.is_dir() and (state := record.refresh()).ended and state.requested:
        blocked = state.id in client.current_report(store).blocked
        if blocked or state.hint or state.waiting_until is not None or time.monotonic() - start > STOP_TIMEOUT:
            return False
        watchdog.check()
        time.sleep(POLL_INTERVAL)
    return True
