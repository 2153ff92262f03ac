"""`tpux quota` (Watch): show how much of a project's quota is used, by zone and type."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from tpux.api import emit, new_app, say
from tpux.api.text import print_table
from tpux_gcp.google_client import ask, items, label
from tpux_gcp.lookup import open_api

if TYPE_CHECKING:
    from tpux_gcp.credentials import Place

app = new_app()
Row = tuple[str, str, float, float | None]
"""A place, what is limited, the limit (-1: none), and what is used; None if that is unknown."""
USAGE = "serviceruntime.googleapis.com/quota/allocation/usage"
OF_REGIONS = ("ADDRESSES", "DISKS_TOTAL_GB", "SSD_TOTAL_GB", "INSTANCES")
"""Quotas of Compute Engine that jobs need: external addresses, disks, and instances."""


@app.command(epilog="Example: tpux quota --zone us-central2-b")
def quota(
    zone: Annotated[str | None, typer.Option(help="Only this zone or region, and its region.")] = None,
    project: Annotated[str | None, typer.Option(help="Google Cloud project. Default: gcloud's.")] = None,
    unused: Annotated[bool, typer.Option("--all", help="Also quotas of which nothing is used.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the quotas of TPUs by zone and type, and those of addresses, disks and instances by region.

    It asks the Service Usage API for the limits of TPUs, Cloud Monitoring for their use, and Compute Engine. It needs
    pip install 'tpux-plugin-gcp[accounting]'.
    """
    api = open_api(project)
    place, name = api.place, api.project
    rows = [*_of_tpus(place, name), *_of_regions(place, name)]
    if zone is not None:
        rows = [row for row in rows if row[0] and (row[0] == zone or zone.startswith(f"{row[0]}-"))]
    shown = sorted((row for row in rows if unused or row[3]), key=lambda row: row[:2])
    if json:
        emit([dict(zip(("place", "quota", "limit", "used"), row, strict=True)) for row in shown])
    elif not shown:
        say(f"nothing of the quotas of project {name} is used; --all shows all of them")
    else:
        columns = {
            "place": [where or "-" for where, *_ in shown],
            "quota": [what for _, what, *_ in shown],
            "used": ["-" if used is None else f"{used:g}" for *_, used in shown],
            "limit": ["none" if limit < 0 else f"{limit:g}" for _, _, limit, _ in shown],
        }
        print_table(columns, always=[*columns])


def _of_tpus(place: Place, project: str) -> Iterator[Row]:
    parent = f"projects/{project}/services/tpu.googleapis.com"
    metrics = ask(place, "serviceusage", "v1beta1", "services.consumerQuotaMetrics", "metrics", parent=parent)
    used = _used(place, project)
    for metric in metrics:
        name = str(metric.get("metric"))
        for limit in items(metric, "consumerQuotaLimits"):
            for bucket in items(limit, "quotaBuckets"):
                where = bucket.get("dimensions")
                dimensions = where if isinstance(where, dict) else {}
                at = str(dimensions.get("zone") or dimensions.get("region") or "")
                most = float(str(bucket.get("effectiveLimit", -1)))
                if at and most:
                    yield at, str(metric.get("displayName") or name), most, used.get((name, at))


def _used(place: Place, project: str) -> dict[tuple[str, str], float]:
    now = datetime.now(UTC)
    series = ask(
        place,
        "monitoring",
        "v3",
        "projects.timeSeries",
        "timeSeries",
        name=f"projects/{project}",
        filter=f'metric.type = "{USAGE}" AND resource.labels.service = "tpu.googleapis.com"',
        interval_startTime=(now - timedelta(days=1, hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ"),
        interval_endTime=now.strftime("%Y-%m-%dT%H:%M:%SZ"),
    )
    found: dict[tuple[str, str], float] = {}
    for one in series:
        points = items(one, "points")  # the newest one first
        value = points[0].get("value") if points else None
        if isinstance(value, dict):
            key = label(one, "metric", "quota_metric"), label(one, "resource", "location")
            found[key] = float(str(value.get("int64Value") or 0))
    return found


def _of_regions(place: Place, project: str) -> Iterator[Row]:
    for region in ask(place, "compute", "v1", "regions", "items", project=project):
        for one in items(region, "quotas"):
            if (metric := str(one.get("metric"))).endswith(OF_REGIONS):
                yield str(region.get("name")), metric, float(str(one.get("limit"))), float(str(one.get("usage")))
