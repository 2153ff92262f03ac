"""`tpux tpu create`: a TPU without a job."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tpux import ProvisionRequest, UsageError
from tpux_gcp import names, spec
from tpux_gcp.api import Api
from tpux_gcp.cli.common import Name, NoWait, Project, Timeout, Zone, say, wait_for
from tpux_gcp.facade import api_of, told, zone_of
from tpux_gcp.problems import CloudError, RefusedError, of_status
from tpux_gcp.things import look
from tpux_gcp.views import Place

if TYPE_CHECKING:
    from tpux import TpuSection


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(epilog="Example: tpux tpu create my-tpu --type v4-8 --zone us-central2-b --pricing spot")(create)


def create(
    name: Name,
    accelerator: Annotated[str, typer.Option("--type", help="The accelerator, such as v4-32.")],
    zone: Zone = None,
    project: Project = None,
    version: Annotated[
        str | None, typer.Option(help="The runtime version; the generation's default without it.")
    ] = None,
    pricing: Annotated[str, typer.Option(help="ondemand, spot or preemptible.")] = "ondemand",
    queued: Annotated[bool, typer.Option("--queued", help="Ask by a queued resource.")] = False,
    node_count: Annotated[int, typer.Option("--node-count", min=1, help="Several slices, by a queued resource.")] = 1,
    network: Annotated[str | None, typer.Option(help="The VPC network.")] = None,
    internal_ips: Annotated[bool, typer.Option("--internal-ips", help="No external addresses.")] = False,
    no_wait: NoWait = False,
    timeout: Timeout = 3600,
) -> None:
    """Make a TPU that belongs to no job: a job whose tpu.name it is borrows it, and leaves it when it ends.

    Ctrl-C while it waits leaves the request; `tpux tpu delete` gives it up.
    """
    from tpux import TpuSection

    api = api_of(project)
    place = Place(api.project, zone_of(zone))
    if pricing not in ("ondemand", "spot", "preemptible"):
        raise UsageError(f"there is no pricing {pricing!r}", hint="ondemand, spot or preemptible")
    kind: Literal["ondemand", "spot", "preemptible"] = pricing  # type: ignore[assignment]
    tpu = TpuSection(
        name=name, accelerator=accelerator, zone=place.zone, version=version, pricing=kind, network=network,
        internal_ips=internal_ips, node_count=node_count,
    )  # fmt: skip
    queue = queued or node_count > 1
    try:
        operation = _ask(api, place, tpu, queue=queue)
        if no_wait:
            say(f"asked for {name}: `tpux tpu status {name}` shows how far it is")
            return
        wait_for(lambda: _unless_ready(api, place, name, operation, queue=queue), timeout=timeout)
    except (CloudError, RefusedError) as error:
        raise told(error) from error
    say(f"{name} in {place.zone} is READY")


def _ask(api: Api, place: Place, tpu: TpuSection, *, queue: bool) -> str:
    request = ProvisionRequest(tpu.name or "", tpu, None, {}, (), Path())
    candidate = spec.candidates(tpu)[0]
    names.node_id(request)
    if queue:
        message = spec.queued(request, candidate, place)
        return api.create_queued(place, request.name, message, str(uuid.uuid4()))
    return api.create_node(place, request.name, spec.node(request, candidate, queued=False))


def _unless_ready(api: Api, place: Place, name: str, operation: str, *, queue: bool) -> str | None:
    thing = look(api, place, name, queue=queue)
    if thing is None:
        ended = api.operation(operation)
        if ended is not None and ended.code:
            raise CloudError(of_status(ended.code, ended.message, api.project))
        return f"{name} is asked for"
    if thing.stand in {"failed", "preempted", "maintenance", "broken"}:
        code, message = thing.error or (13, thing.state)
        raise CloudError(of_status(code, message, api.project))
    return None if thing.stand == "ready" else thing.state
