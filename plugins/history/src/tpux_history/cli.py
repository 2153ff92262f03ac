"""`tpux history` (Watch): show what happened to your jobs, and how time was spent."""

from __future__ import annotations

import shlex
import shutil
import sys
import time
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tpux import TpuxError, UsageError, api, events
from tpux.api.options import SINCE, JobsArg, Json, parse_since
from tpux.api.text import (
    STATE_COLOURS,
    RepetitionFilter,
    describe_event,
    echo,
    echo_painted,
    fit,
    format_duration,
    iso,
    paint,
    print_table,
    printable,
    with_iso_times,
)

if TYPE_CHECKING:
    from tpux import JsonValue
    from tpux_history.prices import Prices
    from tpux_history.sums import Key, Sum
    from tpux_history.use import Held, JobHistory, MachineType

app = api.new_app()


@app.command(
    epilog="Example: tpux history --since yesterday\n\nExample: tpux history 12 --since 2026-11-01"
    "\n\nExample: tpux history --by user,type --since 30d"
)
def history(
    job: JobsArg = None,
    since: Annotated[str, typer.Option(help=f"Start of the period: {SINCE}.")] = "7d",
    prices: Annotated[
        Path | None,
        typer.Option(help="A YAML file of prices per hour by type, such as 'v4-32 spot: 9.5'; by default prices.yaml."),
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(metavar="KEYS", help="Print sums only: by user, tag, type or several of them (user,type)."),
    ] = None,
    json: Json = False,
) -> None:
    """Show what happened to your jobs, one line per important event; then how their time was spent.

    Time is lost by queueing, set-up, preemptions (until the program runs again, and the steps that were done again) and
    other failures. Machine hours are those of machines that cost money, by type and for each slice; those of jobs whose
    records were deleted are in a ledger. The default file of prices is in the directory of the store.

    A job with several tags counts for each in --by tag. Of other users, --by user has the machines that are in their
    ledgers: those that were released.
    """
    from tpux_history.ledger import read_ledger
    from tpux_history.prices import read_prices
    from tpux_history.sums import parse_keys, sum_up
    from tpux_history.use import read_history

    now, keys = time.time(), parse_keys(by)
    begin, table = parse_since(since, now), read_prices(prices)
    found = []
    chosen = [_find_job(name, now) for name in job] if job else list(api.jobs(warn=api.say))
    known = {(one.user, one.id, one.created_at) for one in chosen}
    others = "user" in keys
    deleted = (
        []
        if job
        else [held for held in read_ledger(all_users=others) if (held.user, held.job, held.created_at) not in known]
    )
    deleted = [held for held in deleted if held.seconds(begin, now)]
    for one in chosen:
        if one.updated_at < begin and one.done:
            continue  # most jobs of an old store; nothing of them needs to be read
        try:
            found.append(read_history(api.events(one.id), begin, now))
        except TpuxError as error:
            if job:
                raise
            api.say(f"warning: job {int(one.id)} cannot be read: {error}")
    if keys:
        tags = {one.id: one.tags for one in chosen}
        _print_sums(keys, sum_up(found, deleted, tags, keys, begin, now), table, json=json)
        return
    if json:
        api.emit(_to_json(found, deleted, begin, now, table))
        return
    if not found and not deleted:
        api.say(f"no job was active since {_local(begin)}")
        return
    if found:
        _print_events(found)
        _print_times(found)
    for held in deleted:
        hours = held.seconds(begin, now) / 3600
        where = f" in {held.zone}" if held.zone else ""
        echo(f"{_local(held.end)}  {int(held.job)} {printable(held.name)}, deleted: {held.kind}{where}, {hours:.1f} h")
    _print_machines(_machine_seconds(found, deleted, begin, now), table)


def _find_job(name: str, now: float) -> api.JobInfo:
    """Return the job of this id or name.

    Raises:
        UsageError: there is none; the hint says what to type if the name is a time.
    """
    try:
        return api.job(name, note=api.say)
    except UsageError as error:
        if not name.isdigit():
            with suppress(UsageError):
                parse_since(name, now)
                error.hint = f"for what happened since then: tpux history --since {shlex.quote(name)}"
        raise


def _machine_seconds(
    found: list[JobHistory], deleted: list[Held], begin: float, now: float
) -> dict[MachineType, float]:
    total: defaultdict[MachineType, float] = defaultdict(float)  # by zone as well, which a price may depend on
    for held in deleted:
        total[held.kind] += held.seconds(begin, now)
    for job in found:
        for kind, seconds in job.machine_seconds.items():
            total[kind] += seconds
    return total


def _to_json(
    found: list[JobHistory], deleted: list[Held], begin: float, now: float, prices: Prices
) -> dict[str, JsonValue]:
    from tpux_history.use import USES

    return {
        "since": iso(begin),
        "jobs": [
            {
                "id": job.id,
                "name": job.name,
                "state": job.state,
                "seconds": {use: round(job.seconds[use], 1) for use in USES},
                "repeated_steps": job.repeated_steps,
                "repeated_seconds": round(job.repeated_seconds, 1),
                "events": [with_iso_times(event.to_json()) for event in job.events],
            }
            for job in found
        ],
        "machines": [
            {
                "accelerator": kind.accelerator,
                "pricing": kind.pricing,
                "hours": round(hours, 3),
                "price": price,
            }
            for kind, hours, price in _by_type(_machine_seconds(found, deleted, begin, now), prices)
        ],
        "deleted": [asdict(held) | {"start": iso(held.start), "end": iso(held.end)} for held in deleted],
    }


def _print_events(found: list[JobHistory]) -> None:
    shown = [(event, job) for job in found for event in filter(RepetitionFilter().is_new, job.events)]
    for event, job in sorted(shown, key=lambda item: item[0].at):
        colour = STATE_COLOURS[event.to] if isinstance(event, events.StateChanged) else None
        head, text = f"{_local(event.at)}  {int(job.id)} ", printable(f"{job.name}: {describe_event(event)}")
        if sys.stdout.isatty():  # `tpux show` has all of it
            text = fit(text, shutil.get_terminal_size().columns - len(head))
        echo_painted(head + paint(text, colour))


def _print_times(found: list[JobHistory]) -> None:
    from tpux_history.use import USES

    rows = []
    for job in found:
        again = f"{job.repeated_steps} steps" if job.repeated_steps else "-"
        again += f" ({format_duration(job.repeated_seconds)})" if job.repeated_seconds else ""
        times = [format_duration(job.seconds[use]) if job.seconds[use] else "-" for use in USES]
        rows.append([str(int(job.id)), printable(job.name), job.state, *times, again])
    heads = ["id", "name", "state", *USES, "done again"]
    echo("")
    print_table(
        dict(zip(heads, map(list, zip(*rows, strict=True)), strict=True)),
        always=heads[:3],
        shorten={"name": 8},
        painters={"state": lambda state: paint(state, STATE_COLOURS[state])},
    )


def _print_sums(keys: tuple[Key, ...], sums: Mapping[tuple[str, ...], Sum], prices: Prices, *, json: bool) -> None:
    """Print a line for each group: what it has used, what was lost, and what it cost; unknown if a price is missing."""
    from tpux_history.use import USES

    lost = [use for use in USES if use != "running"]
    found: list[tuple[tuple[str, ...], Sum, float, float | None]] = []
    for group, one in sums.items():
        costs = [price for _, _, price in _by_type(one.machine_seconds, prices)]
        price = None if None in costs else sum(cost for cost in costs if cost is not None)
        found.append((group, one, sum(one.machine_seconds.values()) / 3600, price))
    if json:
        api.emit(
            [
                {
                    **dict(zip(keys, group, strict=True)),
                    "jobs": len(one.jobs),
                    "machine_hours": round(hours, 3),
                    "seconds": {use: round(one.seconds[use], 1) for use in USES},
                    "price": price,
                }
                for group, one, hours, price in found
            ]
        )
        return
    if not found:
        api.say("no job was active in this period")
        return
    columns: dict[str, list[str]] = {
        key: [printable(group[index]) or "-" for group, *_ in found] for index, key in enumerate(keys)
    }
    columns["jobs"] = [str(len(one.jobs)) for _, one, _, _ in found]
    columns["machine hours"] = [f"{hours:.1f}" for _, _, hours, _ in found]
    for use in lost:
        columns[use] = [format_duration(one.seconds[use]) if one.seconds[use] else "-" for _, one, _, _ in found]
    if prices:
        columns["price"] = ["-" if price is None else f"{price:.2f}" for *_, price in found]
    print_table(columns, always=[*keys, "machine hours"])


def _by_type(seconds: Mapping[MachineType, float], prices: Prices) -> list[tuple[MachineType, float, float | None]]:
    """Return hours and price by type and pricing: of all zones together, whose prices may differ."""
    from tpux_history.prices import price_of
    from tpux_history.use import MachineType

    found: dict[MachineType, tuple[float, float | None]] = {}
    for kind, spent in seconds.items():
        key, price = MachineType(kind.accelerator, kind.pricing), price_of(kind, spent / 3600, prices)
        hours, total = found.get(key, (0.0, 0.0))
        found[key] = hours + spent / 3600, None if price is None or total is None else total + price
    return [(kind, *found[kind]) for kind in found]


def _print_machines(machines: Mapping[MachineType, float], prices: Prices) -> None:
    total = 0.0
    for kind, hours, price in sorted(_by_type(machines, prices), key=lambda item: str(item[0])):
        total += price or 0.0
        echo(f"{kind}: {hours:.1f} machine hours" + ("" if price is None else f", {price:.2f}"))
    if machines and prices:
        echo(f"total: {total:.2f}")


def _local(at: float) -> str:
    return f"{datetime.fromtimestamp(at):%Y-%m-%d %H:%M}"
