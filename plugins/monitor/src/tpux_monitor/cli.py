"""`tpux monitor` (Watch): show your jobs and the output of one of them, live."""

from __future__ import annotations

import os
import sys
import time
from typing import Annotated

import typer

from tpux import UsageError, api
from tpux.api.options import DURATION
from tpux.api.text import STATE_COLOURS, paint, print_table

app = api.new_app()


@app.command(epilog="Example: tpux monitor --filter 'state:running !debug'\n\nExample: tpux monitor --once")
def monitor(
    filter_: Annotated[
        str,
        typer.Option(
            "--filter", help="Only jobs with all these words in id or name; also tag:, state:, tpu:, zone:, user:."
        ),
    ] = "",
    interval: Annotated[
        float, typer.Option("-i", "--interval", click_type=DURATION, help="Time between two looks.", show_default="2s")
    ] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Print the table once, as text.")] = False,
    readonly: Annotated[bool, typer.Option("--readonly", help="Offer no key that changes a job.")] = False,
    users: Annotated[bool, typer.Option("--all-users", help="Show the jobs of all users of this store.")] = False,
) -> None:
    """Show the jobs and the output of one of them, live, on the whole terminal; `?` shows the keys.

    Screen readers get all of it from --once, `tpux list` and `tpux wait`.
    """
    if once:
        _print_once(filter_, users=users)
        return
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("the monitor needs a terminal", hint="`tpux monitor --once` prints the table")
    from tpux_monitor.app import Monitor

    if all(os.get_terminal_size(sys.stdout.fileno())):  # else they are all that is known of its size
        for name in ("COLUMNS", "LINES"):  # `eval $(resize)` exports them; they stay when the terminal changes
            os.environ.pop(name, None)
    Monitor(filter_, interval=max(0.25, interval), readonly=readonly, users=users).run()


def _print_once(words: str, *, users: bool) -> None:
    from tpux_monitor import rows
    from tpux_monitor.reader import read

    every = read(users=users)
    jobs = [job for job in every if rows.matches(job.info, words)]
    jobs.sort(key=lambda job: rows.ORDERS["newest"](job.info))
    api.say(rows.summary([job.info for job in jobs]))
    if every and not jobs:
        api.say(f"no job matches {words!r}")
    if jobs:
        cells = [job.cells(time.time()) for job in jobs]
        print_table(
            {name: [row[name] or "-" for row in cells] for name in rows.COLUMNS if users or name != "user"},
            always=rows.REQUIRED,
            drop=rows.LEFT_OUT_FIRST[:-1],
            shorten={"last line": rows.LEAST_LAST, "name": 12},
            painters={"state": lambda state: paint(state, STATE_COLOURS[state])},
        )
