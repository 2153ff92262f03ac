"""`tpux info` (Watch): show which machines your jobs hold and wait for."""

from __future__ import annotations

import shutil
import sys
import textwrap
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tpux import api
from tpux.api.options import Json
from tpux.api.text import STATE_COLOURS, cell_width, echo, format_age, paint, print_table

if TYPE_CHECKING:
    from tpux_history.prices import Prices
    from tpux_info.machines import Machines, Totals

app = api.new_app()
DROPPED = ("slices", "workers")
"""The columns that a narrow terminal does not show, the least important one first."""


@app.command(epilog="Example: tpux info\n\nExample: tpux info --all-users --json")
def info(
    users: Annotated[bool, typer.Option("--all-users", help="Show the machines of all users of this store.")] = False,
    prices: Annotated[
        Path | None,
        typer.Option(help="A YAML file of prices per hour by type, such as 'v4-32 spot: 9.5'; by default prices.yaml."),
    ] = None,
    json: Json = False,
) -> None:
    """Show which machines your jobs hold and wait for, by type, zone and state, until when, and their price per hour.

    Machines are idle that a job holds after its end, and queued while a job waits for them. The default file of prices
    is in the directory of the store. `tpux tpu list` shows TPUs that no job holds.
    """
    from tpux_history.prices import PRICES, read_prices
    from tpux_info.machines import count, group, machines_of

    table = read_prices(prices)
    jobs = api.jobs(all_users=users, warn=api.say)
    found = [machines for machines in map(machines_of, jobs) if machines is not None]
    totals = count(jobs, found, table)
    groups = group(found)
    if json:
        api.emit({"machines": [one.to_json(table) for ones in groups for one in ones], "total": totals.to_json()})
        return
    if groups:
        _print(groups, table, users=users)
        last = _describe(totals, prices or api.home() / PRICES)
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else len(last) + 1
        echo(textwrap.fill(last, width, break_on_hyphens=False))
    else:
        pending = f"; {_count(totals.pending, 'job')} pending" if totals.pending else ""
        api.say(f"no job holds machines or waits for them{pending}")


def _print(groups: Sequence[Sequence[Machines]], prices: Prices, *, users: bool) -> None:
    now = time.time()
    columns: dict[str, list[str]] = {
        "type": [ones[0].kind for ones in groups],
        "zone": [ones[0].zone or "-" for ones in groups],
        "state": [ones[0].state for ones in groups],
        "slices": [str(sum(one.slices for one in ones)) for ones in groups],
        "workers": [str(sum(one.workers for one in ones)) for ones in groups],
        "jobs": [", ".join(f"{int(one.job.id)} {one.job.name}" for one in ones) for ones in groups],
        "user": [ones[0].job.user if users else "-" for ones in groups],
        "released": [_describe_release(ones[0], now) for ones in groups],
        "per hour": [_describe_price(ones, prices) for ones in groups],
    }
    if sys.stdout.isatty() and _width(columns, without=DROPPED) > shutil.get_terminal_size().columns:
        several = [", ".join(str(int(one.job.id)) for one in ones) if len(ones) > 1 else "" for ones in groups]
        columns["jobs"] = [ids or jobs for ids, jobs in zip(several, columns["jobs"], strict=True)]  # no job is cut off
    print_table(
        columns,
        always={"type", "state", "jobs"},
        drop=DROPPED,
        shorten={"jobs": 12, "user": 8},
        last={"jobs": 8, "type": 12, "zone": 0, "user": 0},
        painters={"state": lambda state: paint(state, STATE_COLOURS.get(state, "yellow"))},
    )


def _width(columns: Mapping[str, Sequence[str]], *, without: Collection[str]) -> int:
    """Return the cells that a row takes, without the columns that are empty and some others."""
    shown = [[name, *cells] for name, cells in columns.items() if name not in without and {*cells} != {"-"}]
    return sum(max(map(cell_width, column)) + 2 for column in shown) - 2


def _describe_release(machines: Machines, now: float) -> str:
    """Return when idle machines are released: `in 29m`, `now` or `by hand`."""
    if machines.state != "idle":
        return "-"
    at = machines.job.release_at
    return "by hand" if at is None else "now" if at <= now else f"in {format_age(at - now)}"


def _describe_price(machines: Sequence[Machines], prices: Prices) -> str:
    known = [price for one in machines if (price := one.price(prices)) is not None]
    if not prices or not any(one.costs for one in machines):
        return "-"
    return f"{sum(known):.2f}" if len(known) == len(machines) else "unknown"


def _describe(totals: Totals, prices: Path) -> str:
    """Return the last line: what is held, what is waited for, and the price per hour."""
    states = ", ".join(f"{workers} {state}" for state, workers in totals.held.items())
    held = f"held: {_count(sum(totals.held.values()), 'worker')}" + (f" ({states})" if states else "")
    waiting = [(totals.queued, "queued"), (totals.pending, "pending")]
    jobs = ", ".join(f"{number} {state}" for number, state in waiting if number)
    price = f"{totals.priced:.2f} per hour"
    if totals.unpriced:
        others = f", the others {price}" if totals.priced else ""
        price = f"price per hour unknown ({prices.name} has none for {', '.join(totals.unpriced)}{others})"
    return "; ".join([held, *([f"jobs: {jobs}"] if jobs else []), price])


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
