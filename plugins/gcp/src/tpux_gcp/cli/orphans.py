"""`tpux tpu orphans`: what the cloud holds under our labels with no live job."""

from __future__ import annotations

from typing import Annotated

import typer

from tpux import lease_holder
from tpux_gcp import names
from tpux_gcp.cli.common import AnyZone, Json, Project, Timeout, Yes, brief, confirm, emit, say, shown, table
from tpux_gcp.cli.manage import delete_and_wait
from tpux_gcp.facade import Found, api_of


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(epilog="Example: tpux tpu orphans --delete")(orphans)


def orphans(
    delete: Annotated[bool, typer.Option("--delete", help="Delete them.")] = False,
    zone: AnyZone = None,
    project: Project = None,
    yes: Yes = False,
    json: Json = False,
    timeout: Timeout = 900,
) -> None:
    """Show the TPUs that bear the labels of a job of this store that holds no machines any more.

    TPUs of other stores are none of ours to judge, and one that another job has borrowed is in use.
    """
    api = api_of(project)
    found = [one for one in shown(api, zone) if _is_orphan(one)]
    if json:
        emit([brief(one) for one in found])
    elif found:
        table([brief(one) for one in found])
    else:
        say(f"no orphans in project {api.project}")
    if not delete or not found:
        return
    confirm(f"Delete {', '.join(one.name for one in found)}?", yes=yes)
    for one in found:
        delete_and_wait(api, one, timeout=timeout)


def _is_orphan(found: Found) -> bool:
    return names.is_orphan(found.thing.labels) and not lease_holder(f"{found.place.parent}/{found.name}")
