"""`tpux wait`: wait until jobs have ended."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from tpux.cli import completion
from tpux.cli.common import Json, emit, find_job, new_app, report_end, say, short_id, summary
from tpux.console import DURATION, end_interrupted_line
from tpux.errors import Exit, TpuxError

if TYPE_CHECKING:
    from tpux.store import Store
    from tpux.store.record import Record
    from tpux.store.state import State

app = new_app()


@app.command(epilog="Example: tpux wait 12 13 && echo both succeeded")
def wait(
    jobs: Annotated[
        list[str], typer.Argument(metavar="JOB...", help="The jobs' ids or names.", autocompletion=completion.jobs)
    ],
    timeout: Annotated[
        float | None, typer.Option(click_type=DURATION, help="Maximum time to wait, such as 30s or 2h.")
    ] = None,
    json: Json = False,
) -> None:
    """Wait until jobs have ended.

    Exit codes: 0 all succeeded, 100 one failed, 103 one was stopped.
    """
    from tpux.cli.follow import EXIT_CODES
    from tpux.store import Store
    from tpux.supervisor import client

    store = Store()
    records = [find_job(store, job) for job in jobs]
    if not all(record.refresh().done for record in records):
        client.notify(store)  # a job cannot end without a supervisor
    deadline = None if timeout is None else time.monotonic() + timeout
    try:
        ended = [_wait_for(store, record, deadline, timeout, quiet=json) for record in records]
    except KeyboardInterrupt:
        end_interrupted_line()
        left = " ".join(
            short_id(record.id) for record in records if record.directory.is_dir() and not record.refresh().ended
        )
        say(f"the jobs continue without this command: tpux wait {left}")
        raise
    if json:
        emit([summary(state) for state in ended])
    codes = {EXIT_CODES.get(state.state, Exit.JOB_STOPPED) for state in ended}
    raise typer.Exit(next((code for code in (Exit.JOB_FAILED, Exit.JOB_STOPPED) if code in codes), Exit.OK))


def _wait_for(store: Store, record: Record, deadline: float | None, timeout: float | None, *, quiet: bool) -> State:
    """Wait until a job has ended, and say how.

    Raises:
        TpuxError: it has not ended in time.
    """
    from tpux.cli.follow import wait_until_ended

    left = None if deadline is None else max(0.0, deadline - time.monotonic())
    state = wait_until_ended(store, record, timeout=left)
    if state is None:
        raise TpuxError(f"job {short_id(record.id)} is still {record.refresh().state} after {timeout:.0f} s")
    if not quiet:
        say(f"job {short_id(state.id)} {state.state}" + (f": {state.end_why}" if state.end_why else ""))
        report_end(store, record, state)
    return state
