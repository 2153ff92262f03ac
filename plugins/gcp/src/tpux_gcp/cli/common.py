"""What the commands share: options, output, confirmation, and one line a TPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated

import typer

from tpux import TpuxError, clock_rate
from tpux import confirm as confirm
from tpux import emit as emit
from tpux import say as say
from tpux_gcp.api import Api
from tpux_gcp.facade import EVERYWHERE, Found, list_all

Name = Annotated[str, typer.Argument(metavar="NAME", help="The TPU's name, or its queued resource's.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Zone = Annotated[str | None, typer.Option("--zone", help="Its zone; gcloud's default without it.")]
AnyZone = Annotated[str | None, typer.Option("--zone", help="Only this zone; all of them without it.")]
Project = Annotated[str | None, typer.Option("--project", help="The project; gcloud's default without it.")]
Yes = Annotated[bool, typer.Option("-y", "--yes", help="Do not ask.")]
NoWait = Annotated[bool, typer.Option("--async", help="Do not wait for the end.")]
Timeout = Annotated[float, typer.Option("--timeout", help="Seconds to wait for the end.")]

_LOOK, _MOST = 1.0, 15.0


def table(rows: Sequence[dict[str, object]]) -> None:
    """Print rows that have the same keys."""
    from tabulate import tabulate

    heads = [head.upper() for head in rows[0]]
    cells = [["-" if value in ("", None) else str(value) for value in row.values()] for row in rows]
    typer.echo(tabulate(cells, headers=heads, tablefmt="plain", disable_numparse=True))


def shown(api: Api, zone: str | None) -> list[Found]:
    """All TPUs of a zone, or of all; what the API could not reach is told."""
    unreachable: list[str] = []
    found = list_all(api, zone or EVERYWHERE, unreachable)
    for name in sorted(set(unreachable)):
        say(f"the TPU API could not reach {name}: what is there is not shown")
    return found


def brief(found: Found) -> dict[str, object]:
    """A TPU in one row."""
    thing = found.thing
    return {
        "name": found.name,
        "zone": found.place.zone,
        "kind": "queued resource" if thing.queued else "node",
        "accelerator": thing.accelerator,
        "nodes": len(thing.nodes),
        "workers": thing.workers,
        "pricing": thing.pricing,
        "state": thing.state.rpartition(" is ")[2],
        "job": thing.labels.get("tpux-job", ""),
        "user": thing.labels.get("tpux-user", ""),
    }


def wait_for(look: Callable[[], str | None], *, timeout: float) -> None:
    """Look again and again until `look` says None; what it says is told when it changes.

    Raises:
        TpuxError: it did not come to that in time.
    """
    import time

    rate, told, pause = clock_rate(), "", _LOOK
    deadline = time.monotonic() + timeout / rate
    while (state := look()) is not None:
        if state != told:
            say(state)
        told = state
        if time.monotonic() > deadline:
            raise TpuxError(f"not within {timeout:.0f} s: {state}", hint="it goes on: `tpux tpu status` shows how far")
        time.sleep(pause / rate)
        pause = min(pause * 1.5, _MOST)
