"""`tpux find` (Machines): the TPUs that people share, and who uses each."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tpux import api
from tpux.api.options import Json
from tpux.api.text import print_table, printable
from tpux_gcp.lookup import open_api
from tpux_gcp.zones import full_zone
from tpux_pool.shared import SharedTpu, list_shared

if TYPE_CHECKING:
    from tpux import JsonValue

app = api.new_app()
Pricing = Literal["spot", "preemptible", "ondemand"]


@app.command(epilog="Example: tpux find v4 --free   or: tpux find v2,v3 --pricing spot")
def find(
    types: Annotated[
        str | None,
        typer.Argument(metavar="TYPES", help="Types or generations, such as v4-32 or v2,v3.", show_default=False),
    ] = None,
    free: Annotated[bool, typer.Option("--free", help="Only those that are ready and that nobody uses.")] = False,
    pricing: Annotated[Pricing | None, typer.Option(help="Only those of this pricing model.")] = None,
    zone: Annotated[str | None, typer.Option(help="Only this zone, such as us-central2-b or usc2b.")] = None,
    project: Annotated[str | None, typer.Option(help="Google Cloud project. Default: gcloud's.")] = None,
    json: Json = False,
) -> None:
    """Show the TPUs of the pool, and who uses each since when."""
    wanted = [word.strip() for word in (types or "").split(",") if word.strip()]
    found = [
        tpu
        for tpu in list_shared(open_api(project))
        if _is_of(tpu.found.resource.accelerator, wanted)
        and (not free or (tpu.is_ready and tpu.use is None))
        and pricing in {None, tpu.found.resource.pricing}
        and (not zone or tpu.found.location.zone == full_zone(zone))
    ]
    if json:
        api.emit([to_json(tpu) for tpu in found])
    elif found:
        _print(found)
    else:
        api.say(f"no {'free ' if free else ''}TPU{f' {types}' if types else ''}; `tpux tpu register NAME` adds one")


def _is_of(accelerator: str, wanted: list[str]) -> bool:
    return not wanted or any(word in {accelerator, accelerator.partition("-")[0]} for word in wanted)


def _time(seconds: float) -> str:
    return time.strftime("%m-%d %H:%M", time.localtime(seconds)) if seconds else "-"


def _print(found: list[SharedTpu]) -> None:
    uses = [tpu.use for tpu in found]
    columns = {
        "tpu": [tpu.called for tpu in found],
        "type": [tpu.found.resource.accelerator for tpu in found],
        "pricing": [tpu.found.resource.pricing for tpu in found],
        "zone": [tpu.found.location.zone for tpu in found],
        "state": [tpu.found.resource.state.rpartition(" is ")[2] for tpu in found],
        "user": [printable(use.user) if use else "-" for use in uses],
        "job": [(use.job.lstrip("0") or "hold") if use else "-" for use in uses],
        "since": [_time(use.since) if use else "-" for use in uses],
        "until": [_time(use.until) if use else "-" for use in uses],
        "note": [(printable(use.note) if use else "") or "-" for use in uses],
    }
    drop = ("pricing", "since", "zone", "note")
    print_table(columns, always={"tpu", "user", "state"}, drop=drop, shorten={"note": 10})


def to_json(tpu: SharedTpu) -> dict[str, JsonValue]:
    """Return a TPU and its use as JSON data."""
    found, use = tpu.found, tpu.use
    return {
        "alias": tpu.alias,
        "name": found.name,
        "zone": found.location.zone,
        "accelerator": found.resource.accelerator,
        "pricing": found.resource.pricing,
        "state": found.resource.state.rpartition(" is ")[2],
        "pool": tpu.pool,
        "free": tpu.is_ready and use is None,
        "user": use.user if use else None,
        "job": (use.job or None) if use else None,
        "store": (use.store or None) if use else None,
        "since": (use.since or None) if use else None,
        "until": (use.until or None) if use else None,
        "note": use.note if use else "",
    }
