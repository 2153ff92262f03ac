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
    from tpux_history.use import Held, JobHistory, MachineType

app = api.new_app()
PRICES = "prices.yaml"
Prices = Mapping[str, float]


@app.command(epilog="Example: tpux history --since yesterday\n\nExample: tpux history 12 --since 2026-11-01")
def history(
    job: JobsArg = None,
    since: Annotated[str, typer.Option(help=f"Start of the period: {SINCE}.")] = "7d",
    prices: Annotated[
        Path | None,
        typer.Option(help="A YAML file of prices per hour by type, such as 'v4-32 spot: 9.5'; by default prices.yaml."),
    ] = None,
    json: Json = False,
) -> None:
    """Show what happened to your jobs, one line per important event; then how their time was spent.

    Time is lost by queueing, set-up, preemptions (until the program runs again, and the steps that were done again) and
    other failures. Machine hours are those of machines that cost money, by type and for each slice; those of jobs whose
    records were deleted are in a ledger. The default file of prices is in the directory of the store.
    """
    from tpux_history.ledger import read_ledger
    from tpux_history.use import read_history

    now = time.time()
    begin, table = parse_since(since, now), _read_prices(prices)
    found = []
    chosen = [_find_job(name, now) for name in job] if job else list(api.jobs(warn=api.say))
    known = {(one.id, one.created_at) for one in chosen}
    deleted = [] if job else [held for held in read_ledger() if (held.job, held.created_at) not in known]
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


def _read_prices(given: Path | None) -> Prices:
    """Return the prices per hour, by type; none if there is no table.

    Raises:
        ConfigError: the file cannot be read, or is no table of prices.
    """
    from pydantic import Field, RootModel

    from tpux.fields import read_data_file

    path = given or api.home() / PRICES
    if given is None and not path.exists():
        return {}
    return read_data_file(path, RootModel[dict[str, Annotated[float, Field(strict=True)]]]).root


def _price(kind: MachineType, hours: float, prices: Prices) -> float | None:
    price = prices.get(str(kind), prices.get(kind.accelerator))
    return None if price is None else price * hours


def _machine_seconds(
    found: list[JobHistory], deleted: list[Held], begin: float, now: float
) -> dict[MachineType, float]:
    total: defaultdict[MachineType, float] = defaultdict(float)
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
                "hours": round(seconds / 3600, 3),
                "price": _price(kind, seconds / 3600, prices),
            }
            for kind, seconds in _machine_seconds(found, deleted, begin, now).items()
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


def _print_machines(machines: Mapping[MachineType, float], prices: Prices) -> None:
    total = 0.0
    for kind, seconds in sorted(machines.items(), key=lambda item: str(item[0])):
        price = _price(kind, seconds / 3600, prices)
        total += price or 0.0
        echo(f"{kind}: {seconds / 3600:.1f} machine hours" + ("" if price is None else f", {price:.2f}"))
    if machines and prices:
        echo(f"total: {total:.2f}")


def _local(at: float) -> str:
    return f"{datetime.fromtimestamp(at):%Y-%m-%d %H:%M}"
