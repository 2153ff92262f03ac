"""`tpux tpu` (Administration): list, create, change and delete TPUs by name."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tpux import ProvisionRequest, UsageError
from tpux.api import confirm, emit, say
from tpux.api.options import DURATION
from tpux.api.text import echo, print_table
from tpux.fields import workers_of
from tpux_gcp import register as register_
from tpux_gcp.api import Api
from tpux_gcp.claims import user_of
from tpux_gcp.errors import CloudError
from tpux_gcp.labels import tpu_name
from tpux_gcp.lookup import (
    FoundTpu,
    cli_errors,
    find,
    list_tpus,
    look_again,
    open_api,
    orphans_of,
    state_of,
    state_unless_ready,
    wait_for,
    zone_or_default,
)
from tpux_gcp.reports import findings
from tpux_gcp.resource import Location
from tpux_gcp.spec import node_message, queued_resource_message
from tpux_gcp.zones import full_zone, short_zone

if TYPE_CHECKING:
    from tpux_gcp.section import GcpTpuSection

app = typer.Typer(
    name="tpu",
    help="List, create and delete TPUs by name; queued resources and nodes alike.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
    no_args_is_help=True,
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the TPU or of its queued resource.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def _full(zone: str | None) -> str | None:
    return full_zone(zone) if zone else None


Zone = Annotated[
    str | None,
    typer.Option("--zone", callback=_full, help="Zone of the TPU, such as us-central2-b or usc2b. Default: gcloud's."),
]
AnyZone = Annotated[
    str | None, typer.Option("--zone", callback=_full, help="Only this zone, such as usc2b. Default: all zones.")
]
Project = Annotated[str | None, typer.Option("--project", help="Google Cloud project. Default: gcloud's.")]
Yes = Annotated[bool, typer.Option("-y", "--yes", help="Do not ask for confirmation.")]
NoWait = Annotated[bool, typer.Option("--async", help="Return without waiting for completion.")]
Timeout = Annotated[
    float, typer.Option("--timeout", click_type=DURATION, show_default="15m", help="How long to wait, such as 10m.")
]

DROPPED_FIRST = ("nodes", "kind", "user", "pricing", "workers")
"""The columns that a narrow terminal does not show, the least important one first."""
LEAST_WIDTHS = {"state": 8, "name": 20}
"""The columns that it shows shortened, with their least width."""

# --- show -----------------------------------------------------------------------------------------


@app.command("list", epilog="Example: tpux tpu list --zone us-central2-b")
def list_(zone: AnyZone = None, project: Project = None, json: Json = False) -> None:
    """List the project's TPUs and the jobs that use them."""
    api = open_api(project)
    found, where = _list(api, zone)
    print_tpus(found, json=json, empty=f"no TPUs in {where} of project {api.project}")


@app.command(epilog="Example: tpux tpu status my-tpu --zone us-central2-b")
def status(name: Name, zone: Zone = None, project: Project = None, json: Json = False) -> None:
    """Show the state of a TPU and of its nodes."""
    api = open_api(project)
    found = find(api, name, zone_or_default(api, zone))
    nodes = [
        {
            "node": node.name,
            "state": node.state,
            "health": node.health,
            "workers": len(node.endpoints),
            "reports": [finding.message for finding in findings(node)],
        }
        for node in found.resource.nodes
    ]
    if json:
        emit({**_summary(found), "nodes": nodes})
        return
    typer.echo(found.resource.state)
    for node in nodes:
        typer.echo(f"  {node['node']}: {node['state']} {node['health']}".rstrip() + f", {node['workers']} worker(s)")
    for finding in (finding for node in found.resource.nodes for finding in findings(node)):
        echo(f"  {finding.message}")


@app.command(epilog="Example: tpux tpu describe my-tpu --zone us-central2-b")
def describe(name: Name, zone: Zone = None, project: Project = None) -> None:
    """Print the API's description of a TPU as JSON.

    A queued resource comes first, then its nodes.
    """
    api = open_api(project)
    found = find(api, name, zone_or_default(api, zone))
    queued = found.resource.queued_resource
    with cli_errors():
        messages = [api.queued_resource_message(found.location, queued)] if queued else []
        messages += [api.node_message(found.location, node.name) for node in found.resource.nodes]
    emit([dict(message) for message in messages if message is not None])


@app.command(epilog="Example: tpux tpu zones")
def zones(project: Project = None, json: Json = False) -> None:
    """List the zones, with their short forms and TPU generations.

    They are those that the project may use.
    """
    api = open_api(project)
    with cli_errors():
        names = api.zones()
        with ThreadPoolExecutor(max_workers=8) as pool:
            available = list(pool.map(lambda zone: _generations(api, zone), names))
    rows: list[dict[str, object]] = [
        {"zone": zone, "short": short_zone(zone), "generations": list(found) if json else " ".join(found)}
        for zone, found in zip(names, available, strict=True)
    ]
    emit(rows) if json else print_rows(rows or [{"zone": "", "short": "", "generations": ""}])


@app.command(epilog="Example: tpux tpu types --zone us-central2-b")
def types(zone: AnyZone = None, project: Project = None, json: Json = False) -> None:
    """List the accelerator types of each zone, with their workers."""
    api = open_api(project)
    with cli_errors():
        zones = [zone] if zone else api.zones()
    rows: list[dict[str, object]] = [
        {"zone": zone, "accelerator": name, "workers": _workers_of(name)}
        for zone in zones
        for name in _in_zone(api.accelerator_types, Location(api.project, zone))
    ]
    emit(rows) if json else print_rows(rows or [{"zone": zone, "accelerator": "", "workers": ""}])


@app.command(epilog="Example: tpux tpu versions --zone us-central2-b")
def versions(zone: Zone = None, project: Project = None, json: Json = False) -> None:
    """List the runtime versions (VM images) of a zone."""
    api = open_api(project)
    names = _in_zone(api.runtime_versions, Location(api.project, zone_or_default(api, zone)))
    emit(names) if json else typer.echo("\n".join(names))


# --- create and change ----------------------------------------------------------------------------


@app.command(epilog="Example: tpux tpu create my-tpu --type v4-8 --zone us-central2-b --pricing spot")
def create(
    name: Name,
    accelerator: Annotated[str, typer.Option("--type", help="Accelerator type, such as v4-32.")],
    zone: Zone = None,
    project: Project = None,
    version: Annotated[
        str | None, typer.Option(help="Runtime version. Default: the one for the TPU generation.")
    ] = None,
    pricing: Annotated[str, typer.Option(help="ondemand, spot or preemptible.")] = "ondemand",
    queued: Annotated[bool, typer.Option("--queued", help="Create a queued resource.")] = False,
    node_count: Annotated[
        int, typer.Option("--node-count", min=1, help="Number of slices; several need a queued resource.")
    ] = 1,
    network: Annotated[str | None, typer.Option(help="VPC network.")] = None,
    internal_ips: Annotated[bool, typer.Option("--internal-ips", help="No external IP addresses.")] = False,
    no_wait: NoWait = False,
    timeout: Annotated[
        float, typer.Option("--timeout", click_type=DURATION, show_default="1h", help="How long to wait, such as 10m.")
    ] = 3600,
) -> None:
    """Create a TPU that belongs to no job. A job with this tpu.name borrows it, and keeps it when it ends.

    Ctrl-C while waiting leaves the request; `tpux tpu delete` cancels it.
    """
    from tpux_gcp.section import GcpTpuSection

    workers_of(accelerator)  # reports an unknown type
    api = open_api(project)
    location = Location(api.project, zone_or_default(api, zone))
    if pricing not in ("ondemand", "spot", "preemptible"):
        raise UsageError(f"invalid pricing {pricing!r}", hint="ondemand, spot or preemptible")
    valid_pricing: Literal["ondemand", "spot", "preemptible"] = pricing  # type: ignore[assignment]
    tpu = GcpTpuSection(
        name=name, accelerator=accelerator, zone=location.zone, version=version, pricing=valid_pricing,
        network=network, internal_ips=internal_ips, node_count=node_count,
    )  # fmt: skip
    queue = queued or node_count > 1
    with cli_errors():
        operation = _create(api, location, tpu, queue=queue)
        if no_wait:
            say(f"requested {name}: `tpux tpu status {name}` shows its state")
            return
        wait_for(lambda: state_unless_ready(api, location, name, operation, queue=queue), timeout=timeout)
    say(f"{name} in {location.zone} is READY")


@app.command(epilog="Example: tpux tpu delete my-tpu --zone us-central2-b -y")
def delete(
    name: Name,
    zone: Zone = None,
    project: Project = None,
    yes: Yes = False,
    no_wait: NoWait = False,
    timeout: Timeout = 900,
) -> None:
    """Delete a TPU: a queued resource with its nodes, or a node. One slice of several is deleted with the others."""
    from tpux_gcp.borrowing import slices_around

    api = open_api(project)
    found = find(api, name, zone_or_default(api, zone))
    whole = found.resource.queued_resource
    with cli_errors():
        slices = slices_around(api, found.location, name, found.resource)
    if slices > 1:
        say(f"{name} is one of the {slices} slices of the queued resource {whole}, which are deleted together")
        found = find(api, whole, found.location.zone)
    job, user = user_of(found.resource.labels)
    of_job = f", the TPU of job {job} of {user}" if job else ""
    what = f"{found.name} with its {slices} slices" if slices > 1 else name
    confirm(f"Delete {what} in {found.location.zone} of project {api.project}{of_job}?", yes=yes)
    _delete(api, found, timeout=0 if no_wait else timeout)


@app.command(epilog="Example: tpux tpu start my-tpu --zone us-central2-b")
def start(
    name: Name, zone: Zone = None, project: Project = None, no_wait: NoWait = False, timeout: Timeout = 900
) -> None:
    """Start a stopped TPU with one worker."""
    api = open_api(project)
    found = _single_worker(api, name, zone, "start")
    with cli_errors():
        api.start_node(found.location, found.resource.nodes[0].name)
    _report(api, found, "starting", "READY", no_wait=no_wait, timeout=timeout)


@app.command(epilog="Example: tpux tpu stop my-tpu --zone us-central2-b")
def stop(
    name: Name, zone: Zone = None, project: Project = None, no_wait: NoWait = False, timeout: Timeout = 900
) -> None:
    """Stop a TPU with one worker; its disk is kept. Slices with several workers can only be deleted."""
    api = open_api(project)
    found = _single_worker(api, name, zone, "stop")
    with cli_errors():
        api.stop_node(found.location, found.resource.nodes[0].name)
    _report(api, found, "stopping", "STOPPED", no_wait=no_wait, timeout=timeout)


@app.command(epilog="Example: tpux tpu orphans --delete")
def orphans(
    delete: Annotated[bool, typer.Option("--delete", help="Delete them.")] = False,
    zone: AnyZone = None,
    project: Project = None,
    yes: Yes = False,
    json: Json = False,
    timeout: Timeout = 900,
) -> None:
    """List the TPUs of this store's jobs that no job holds.

    TPUs of other stores, and those that another job has borrowed, are not listed. Each is looked at again before it is
    deleted.
    """
    api = open_api(project)
    every, where = _list(api, zone)
    found = orphans_of(every)
    print_tpus(found, json=json, empty=f"no orphans in {where} of project {api.project}")
    if not delete or not found:
        return
    confirm(f"Delete {', '.join(tpu.name for tpu in found)}?", yes=yes)
    for tpu in found:
        _delete_orphan(api, tpu, timeout=timeout)


@app.command(epilog="Example: tpux tpu register my-tpu --zone us-central2-b --alias v4-32-p2")
def register(
    name: Name,
    zone: Zone = None,
    project: Project = None,
    alias: Annotated[str | None, typer.Option(help="What it is called in this store, such as v4-32-p2.")] = None,
    pool: Annotated[
        str | None, typer.Option(help="A pool that may take it, of any store: the TPU gets its name as a label.")
    ] = None,
) -> None:
    """Let jobs with the allocator pool take a TPU.

    No job may have created it, and the jobs are those of this store.
    """
    register_.register(open_api(project), name, zone, alias, pool)


@app.command(epilog="Example: tpux tpu alias my-tpu v4-32-p2")
def alias(
    known: register_.Known,
    alias: Annotated[str, typer.Argument(metavar="NEW", help="What it is called from now on.")],
) -> None:
    """Change what a registered TPU is called."""
    register_.set_alias(known, alias)


@app.command(epilog="Example: tpux tpu unregister v4-32-p2")
def unregister(known: register_.Known) -> None:
    """Take a TPU out of the pool. A job that uses it goes on."""
    register_.unregister(known)


def _create(api: Api, location: Location, tpu: GcpTpuSection, *, queue: bool) -> str:
    from tpux_gcp.stockout import find_candidates

    request = ProvisionRequest(tpu.name or "", tpu, None, {}, (), Path())
    candidate = find_candidates(tpu, location.zone)[0]
    name = tpu_name(request)
    if queue:
        message = queued_resource_message(request, candidate, location, name)
        return api.create_queued_resource(location, name, message, str(uuid.uuid4()))
    return api.create_node(location, name, node_message(request, candidate, queued=False))


def _delete_orphan(api: Api, listed: FoundTpu, *, timeout: float) -> None:
    """Delete an orphan if it still is one: since it was listed, its job may have been resumed, or taken over."""

    def orphan() -> FoundTpu | None:
        found = look_again(api, listed)
        return found if found and orphans_of([found]) else None

    if found := orphan():
        _delete(api, found, timeout=timeout, again=lambda: orphan() is not None)
    else:
        say(f"not deleted: {listed.name} in {listed.location.zone} is no orphan any more")


def _delete(api: Api, found: FoundTpu, *, timeout: float, again: Callable[[], bool] = lambda: True) -> None:
    """Delete a TPU and wait until it is gone; do not wait if the timeout is 0.

    Args:
        api: the API.
        found: the TPU.
        timeout: how long to wait.
        again: whether the deletion may be repeated.
    """
    if found.resource.status != "deleting":
        with cli_errors():
            api.delete(found.location, found.resource)
    if timeout:
        wait_for(lambda: state_of(api, found, delete=again), timeout=timeout)
    say(f"{'deleted' if timeout else 'deleting'} {found.name} in {found.location.zone}")


def _single_worker(api: Api, name: str, zone: str | None, verb: str) -> FoundTpu:
    found = find(api, name, zone_or_default(api, zone))
    if len(found.resource.nodes) != 1 or found.resource.workers > 1:
        raise UsageError(f"cannot {verb} {name}: {found.resource.state}", hint="only a node with one worker can be")
    return found


def _report(api: Api, found: FoundTpu, doing: str, target: str, *, no_wait: bool, timeout: float) -> None:
    """Wait until a node has reached its target state, and say so."""

    def state() -> str | None:
        current = state_of(api, found)
        return None if current and current.endswith(f" is {target}") else current or f"{found.name} no longer exists"

    if no_wait:
        say(f"{found.name} in {found.location.zone}: {doing}")
        return
    wait_for(state, timeout=timeout)
    say(f"{found.name} is {target}")


def _list(api: Api, zone: str | None) -> tuple[list[FoundTpu], str]:
    """Return the TPUs, and where they were looked for; say what the list lacks."""
    found, unreachable = list_tpus(api, zone)
    for name in unreachable:
        say(f"the TPU API could not reach {name}: its TPUs are missing from the list")
    if api.unreadable:
        say(f"{api.unreadable} items of the TPU API's lists cannot be read, and are left out")
    return found, "the zones that answer" if unreachable else zone or "any zone"


def _generations(api: Api, zone: str) -> list[str]:
    """Return the TPU generations of a zone; none if the project may not use it."""
    try:
        types = api.accelerator_types(Location(api.project, zone))
    except CloudError as error:
        if error.problem.kind not in {"missing", "forbidden"}:
            raise
        return []
    return list(dict.fromkeys(name.partition("-")[0] for name in types))


def _in_zone(method: Callable[[Location], list[str]], location: Location) -> list[str]:
    with cli_errors():
        try:
            return method(location)
        except CloudError as error:
            if error.problem.kind != "missing":
                raise
            raise UsageError(f"project {location.project} has no TPU zone {location.zone}") from error


def _workers_of(accelerator: str) -> int | None:
    try:
        return workers_of(accelerator)
    except UsageError:  # a generation that this version of tpux does not know
        return None


# --- tables and JSON ------------------------------------------------------------------------------


def print_tpus(found: list[FoundTpu], *, json: bool, empty: str) -> None:
    """Print TPUs, or say that there are none.

    Args:
        found: the TPUs.
        json: print JSON.
        empty: what is said if there are none.
    """
    rows = [_summary(tpu) for tpu in found]
    if json:
        emit(rows)
    elif rows:
        print_rows([{**row, "job": str(row["job"]).lstrip("0")} for row in rows])
    else:
        say(empty)


def print_rows(rows: Sequence[dict[str, object]]) -> None:
    """Print rows as a table, headed by the keys of the first one, that fits the terminal."""
    table = {head: ["-" if row[head] in ("", None) else str(row[head]) for row in rows] for head in rows[0]}
    print_table(table, always=table.keys(), drop=DROPPED_FIRST, shorten=LEAST_WIDTHS)


def _summary(found: FoundTpu) -> dict[str, object]:
    """Return the fields of a TPU that lists show."""
    resource = found.resource
    job, user = user_of(resource.labels)
    return {
        "name": found.name,
        "zone": found.location.zone,
        "kind": "queued resource" if resource.queued_resource else "node",
        "accelerator": resource.accelerator,
        "nodes": len(resource.nodes),
        "workers": resource.workers,
        "pricing": resource.pricing,
        "state": resource.state.rpartition(" is ")[2],
        "job": job,
        "user": user,
    }
