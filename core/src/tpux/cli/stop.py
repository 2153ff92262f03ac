"""`tpux stop`: stop jobs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from tpux.cli.common import (
    DryRun,
    JobsArg,
    OfName,
    OfState,
    OfTag,
    describe_jobs,
    held_notice,
    new_app,
    say,
    select_jobs,
    short_id,
)
from tpux.console import end_interrupted_line
from tpux.errors import Exit, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tpux.model.events import Event
    from tpux.store import Store
    from tpux.store.record import Record
    from tpux.store.state import State

app = new_app()

STOP_TIMEOUT = 60.0
"""Seconds for which the command waits; the programs may take longer to end."""
INTERRUPTED = 130
"""The exit code after Ctrl-C."""


@dataclass(frozen=True)
class StopRequest:
    """A request to stop a job.

    Attributes:
        number: the number of the request.
        release: it asks for the release of the machines.
        keep: it asks to keep them.
        had_ended: the job had ended before.
        held: the job held machines before.
    """

    number: int
    release: bool
    keep: bool
    had_ended: bool
    held: bool


@app.command(epilog="Example: tpux stop 12 13 --release")
def stop(
    jobs: JobsArg = None,
    release: Annotated[bool, typer.Option("--release", help="Release the machines now.")] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the machines until they are released by hand.")] = False,
    wait: Annotated[bool, typer.Option(help="Wait until the programs have ended.")] = True,
    state: OfState = None,
    name: OfName = None,
    tag: OfTag = None,
    dry_run: DryRun = False,
) -> None:
    """Stop jobs: their programs get SIGTERM, and SIGKILL after command.grace_period.

    The machines are kept for `tpux resume` for tpu.keep_on_stop, one hour by default.

    The command waits up to a minute. The exit code is 1 if a job has not stopped by then, if its machines are not
    released although --release was given, or if a later command prevented it.
    """
    from tpux.store import Store, requests
    from tpux.supervisor import client

    if release and keep:
        raise UsageError("--release and --keep exclude each other")
    store = Store()
    records = select_jobs(store, jobs or [], state=state, name=name, tags=tag)
    requested: dict[Record, StopRequest] = {}
    for record in records:
        requests.require_not_deleted(record)
        if dry_run:
            say(f"would stop{' and release' if release else ''}:\n{describe_jobs([record], releases=release)}")
        elif requests.has_finished(record) and not (release or keep):
            say(f"job {short_id(record.id)} has already ended: {record.refresh().state}")
        else:
            before = record.refresh()
            if keep and _release_requested(record):
                say(f"job {short_id(record.id)}: --keep cancels the release of its machines")
            number = requests.write(record, "stop", release=release, keep=keep)
            requested[record] = StopRequest(number, release, keep, before.ended, before.allocation is not None)
    if requested:
        client.notify(store)
    if wait:
        raise typer.Exit(_wait_for_all(store, requested))
    for record in requested:
        say(f"job {short_id(record.id)}: stop requested")


def _release_requested(record: Record) -> bool:
    """Return whether a user has requested the release of a job's machines, and it has not begun."""
    from tpux.store import requests

    state = record.refresh()
    stopping = state.state == "stopping" or state.release_promised
    promised = stopping and state.last_request.get("release") is True and not state.releasing
    return promised or any(request.release for request in requests.pending(record))


def _wait_for_all(store: Store, requested: Mapping[Record, StopRequest]) -> int:
    """Wait until jobs have stopped, print what has become of them, and return the exit code."""
    try:
        done = [_wait_and_report(store, record, asked) for record, asked in requested.items()]
    except KeyboardInterrupt:
        end_interrupted_line()
        _report_interrupted([*requested])
        return INTERRUPTED
    return Exit.OK if all(done) else Exit.ERROR


def _report_interrupted(records: Sequence[Record]) -> None:
    """Print which of the requests are still being carried out; they stay in effect."""
    for record in records:
        if not record.directory.is_dir():
            continue
        state = record.refresh()
        if state.release_promised:
            say(f"the machines of job {short_id(record.id)} are still being released: tpux show {short_id(record.id)}")
        elif not state.ended:
            say(f"job {short_id(record.id)} is still being stopped: tpux wait {short_id(record.id)}")


def _wait_and_report(store: Store, record: Record, asked: StopRequest) -> bool:
    """Wait until a job has stopped, and print what has become of it and of its machines.

    Returns:
        Whether what was requested has happened.
    """
    from tpux.cli.follow import wait_until_ended

    job = short_id(record.id)
    if wait_until_ended(store, record, timeout=STOP_TIMEOUT, request=asked.number) is None:
        say(f"job {job} is still stopping; wait for it: tpux wait {job}")
        return False
    if asked.release:
        _wait_for_release(store, record)
    if not record.directory.is_dir():
        remains = store.unreleased(record.id)
        say(f"job {job} was deleted meanwhile" + (f"; {remains}" if remains else ""))
        return not (asked.keep or remains)
    state = record.refresh()
    if not state.ended:
        return _report_restart(record, asked)
    text = f"job {job} {'had already ended: ' if asked.had_ended else ''}{state.state}"
    if asked.release:
        return _report_release(store, record, state, text)
    return _report_end(state, asked, text)


def _wait_for_release(store: Store, record: Record) -> None:
    """Wait until the machines of an ended job are released, so that the next command finds it so.

    It ends after `STOP_TIMEOUT`, if a later request cancels the release, and at once if the release can only be waited
    for, or the user must do something before.
    """
    from tpux.api.watch import watch
    from tpux.supervisor import client

    for state in watch(store, record, timeout=STOP_TIMEOUT, warn=say, notice=say):
        if not state.release_promised or state.hint or state.waiting_until is not None:
            return
        if state.id in client.current_report(store).blocked:
            return


def _report_restart(record: Record, asked: StopRequest) -> bool:
    """Print that a job had stopped and was started again; return whether a requested release took place."""
    from tpux.model.events import Released

    released = any(isinstance(event, Released) for event in _events_after(record, asked.number))
    machines = ""
    if asked.release:
        machines = " and its machines were released" if released else "; the release of its machines was cancelled"
    action, job = record.state.last_request.get("action"), short_id(record.id)
    say(f"job {job} had stopped{machines}; it was started again by a later `tpux {action}`: tpux show {job}")
    return released or not (asked.release and asked.held)


def _events_after(record: Record, request: int) -> list[Event]:
    """Return a job's events after the one that says that a request has taken effect."""
    from tpux.model.events import RequestAccepted

    after: list[Event] = []
    for event, _ in record.events():
        after.append(event)
        if isinstance(event, RequestAccepted) and event.number == request:
            after.clear()
    return after


def _report_release(store: Store, record: Record, state: State, text: str) -> bool:
    """Print whether the requested release of an ended job's machines has taken place.

    Args:
        store: the store of the job.
        record: the job.
        state: its state.
        text: what the message begins with.

    Returns:
        Whether they are released; also True if that can only be waited for.
    """
    job = short_id(state.id)
    if not state.requested:
        taker = _taker(record)
        taken = f"job {short_id(taker)} has taken over its machines: tpux stop {short_id(taker)} --release"
        remains = store.unreleased(state.id)
        say(f"{text}; {taken if taker else remains or 'its machines are released'}")
        return not taker
    if state.release_promised:
        if state.hint:
            say(f"{text}; {state.why}. {state.hint}")
        else:
            say(f"{text}; its machines are still being released: tpux show {job}")
        return state.waiting_until is not None
    if state.last_request.get("keep"):
        say(f"{text}; the release was cancelled by a later `tpux stop --keep`")
    else:
        say(f"{text}; the release was cancelled by later commands: tpux show {job}")
    say(held_notice(state) or f"its machines are kept until they are released by hand: tpux stop {job} --release")
    return False


def _taker(record: Record) -> str:
    """Return which job has taken over the machines that a job held last; "" if none has."""
    from tpux.model.events import Allocated, Transferred

    taker = ""
    for event, _ in record.events():
        if isinstance(event, (Allocated, Transferred)):
            taker = event.to if isinstance(event, Transferred) else ""
    return taker


def _report_end(state: State, asked: StopRequest, text: str) -> bool:
    """Print how a job has ended, and what it holds; return whether its machines are kept if the user requested it."""
    from tpux.store import requests

    why = {"stopped": state.why, "succeeded": state.end_why}.get(state.state, "")
    more = f": {why}" if why not in {"", requests.STOPPED} else ""
    say(f"{text}{more}")
    if asked.keep and state.last_request.get("release"):
        say(f"its machines are released by a later `tpux stop --release`: tpux show {short_id(state.id)}")
        return False
    if state.releasing:
        say(f"its machines are being released, which cannot be cancelled any more: tpux show {short_id(state.id)}")
    elif notice := held_notice(state):
        say(notice)
    elif asked.keep and asked.held and not state.requested:
        say("it holds no machines any more")
    return not (asked.keep and asked.held) or (state.requested and state.release_at is None and not state.releasing)
