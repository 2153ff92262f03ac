"""`tpux tpu types`, `versions`."""

from __future__ import annotations

from collections.abc import Callable

import typer

from tpux import UsageError, workers_of
from tpux_gcp.api import Api
from tpux_gcp.cli.common import AnyZone, Json, Project, Zone, emit, table
from tpux_gcp.facade import api_of, told, zone_of
from tpux_gcp.problems import CloudError
from tpux_gcp.views import Place


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command(epilog="Example: tpux tpu types --zone us-central2-b")(types)
    app.command(epilog="Example: tpux tpu versions --zone us-central2-b")(versions)


def types(zone: AnyZone = None, project: Project = None, json: Json = False) -> None:
    """Show the accelerator types that each zone has, and how many workers each is."""
    api = api_of(project)
    rows: list[dict[str, object]] = []
    for place in [Place(api.project, zone)] if zone else _places(api):
        rows += [
            {"zone": place.zone, "accelerator": name, "workers": _workers(name)}
            for name in _asked(api.accelerators, place)
        ]
    emit(rows) if json else table(rows or [{"zone": zone, "accelerator": "", "workers": ""}])


def versions(zone: Zone = None, project: Project = None, json: Json = False) -> None:
    """Show the runtime versions (VM images) of a zone."""
    api = api_of(project)
    names = _asked(api.versions, Place(api.project, zone_of(zone)))
    emit(names) if json else typer.echo("\n".join(names))


def _places(api: Api) -> list[Place]:
    try:
        return [Place(api.project, zone) for zone in api.zones()]
    except CloudError as error:
        raise told(error) from error


def _asked(ask: Callable[[Place], list[str]], place: Place) -> list[str]:
    try:
        return ask(place)
    except CloudError as error:
        if error.problem.kind == "missing":
            raise UsageError(f"project {place.project} has no TPU zone {place.zone}") from error
        raise told(error) from error


def _workers(accelerator: str) -> int | None:
    try:
        return workers_of(accelerator)
    except UsageError:  # a generation that tpux does not know yet
        return None
