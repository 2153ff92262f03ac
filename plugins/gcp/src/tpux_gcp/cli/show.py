"""`tpux tpu list`, `status`, `describe`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from tpux_gcp.cli.common import AnyZone, Json, Name, Project, Zone, brief, emit, say, shown, table
from tpux_gcp.facade import api_of, find, messages, zone_of

if TYPE_CHECKING:
    from google.cloud import tpu_v2


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("list", epilog="Example: tpux tpu list --zone us-central2-b")(list_)
    app.command(epilog="Example: tpux tpu status my-tpu --zone us-central2-b")(status)
    app.command(epilog="Example: tpux tpu describe my-tpu --zone us-central2-b")(describe)


def list_(zone: AnyZone = None, project: Project = None, json: Json = False) -> None:
    """Show the TPUs of the project, queued or made, and which job each belongs to."""
    api = api_of(project)
    rows = [brief(found) for found in shown(api, zone)]
    if json:
        emit(rows)
    elif rows:
        table(rows)
    else:
        say(f"no TPUs in {zone or 'any zone'} of project {api.project}")


def status(name: Name, zone: Zone = None, project: Project = None, json: Json = False) -> None:
    """Show how a TPU stands, and each of its nodes."""
    found = find(api_of(project), name, zone_of(zone))
    nodes = [
        {"node": node.name, "state": node.state, "health": node.health, "workers": len(node.endpoints)}
        for node in found.thing.nodes
    ]
    if json:
        emit({**brief(found), "nodes": nodes})
        return
    typer.echo(found.thing.state)
    for node in nodes:
        typer.echo(f"  {node['node']}: {node['state']} {node['health']}".rstrip() + f", {node['workers']} worker(s)")


def describe(name: Name, zone: Zone = None, project: Project = None) -> None:
    """Show all that the API says about a TPU, as JSON: the queued resource, where there is one, then its nodes."""
    api = api_of(project)
    emit([_as_json(message) for message in messages(api, find(api, name, zone_of(zone)))])


def _as_json(message: tpu_v2.Node | tpu_v2.QueuedResource) -> object:
    """The message as the API writes it: camelCase, enums by their names, and nothing that is not set."""
    return type(message).to_dict(
        message,
        use_integers_for_enums=False,
        preserving_proto_field_name=False,
        always_print_fields_with_no_presence=False,
    )
