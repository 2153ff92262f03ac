"""`tpux tpu`: TPUs by their names, whether they are queued or made."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tpux import Request, TpuxError, UsageError, claimed, clock_rate, confirm, emit, say, workers_of
from tpux_gcp import labels, lookup, spec, validation
from tpux_gcp.api import Api, look
from tpux_gcp.errors import CloudError, RefusedError, of_status
from tpux_gcp.lookup import EVERYWHERE, Found, api_of, find, list_all, messages, told, zone_of
from tpux_gcp.resource import Place

if TYPE_CHECKING:
    from google.cloud import tpu_v2

    from tpux import TpuSection

app = typer.Typer(
    name="tpu",
    help="TPUs by their names, whether they are queued or made.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
    no_args_is_help=True,
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="The TPU's name, or its queued resource's.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Zone = Annotated[str | None, typer.Option("--zone", help="Its zone; gcloud's default without it.")]
AnyZone = Annotated[str | None, typer.Option("--zone", help="Only this zone; all of them without it.")]
Project = Annotated[str | None, typer.Option("--project", help="The project; gcloud's default without it.")]
Yes = Annotated[bool, typer.Option("-y", "--yes", help="Do not ask.")]
NoWait = Annotated[bool, typer.Option("--async", help="Do not wait for the end.")]
Timeout = Annotated[float, typer.Option("--timeout", help="Seconds to wait for the end.")]
_LOOK, _MOST = 1.0, 15.0


@app.command(epilog="Example: tpux tpu create my-tpu --type v4-8 --zone us-central2-b --pricing spot")
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
    request = Request(tpu.name or "", tpu, None, {}, (), Path())
    candidate = spec.candidates(tpu)[0]
    validation.node_id(request)
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


@app.command("list", epilog="Example: tpux tpu list --zone us-central2-b")
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


@app.command(epilog="Example: tpux tpu status my-tpu --zone us-central2-b")
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


@app.command(epilog="Example: tpux tpu describe my-tpu --zone us-central2-b")
def describe(name: Name, zone: Zone = None, project: Project = None) -> None:
    """Show all that the API says about a TPU, as JSON: the queued resource, where there is one, then its nodes."""
    api = api_of(project)
    emit([_as_json(message) for message in messages(api, find(api, name, zone_of(zone)))])


@app.command(epilog="Example: tpux tpu delete my-tpu --zone us-central2-b -y")
def delete(
    name: Name,
    zone: Zone = None,
    project: Project = None,
    yes: Yes = False,
    no_wait: NoWait = False,
    timeout: Timeout = 900,
) -> None:
    """Delete a TPU: a queued resource with its nodes, or a node."""
    api = api_of(project)
    found = find(api, name, zone_of(zone))
    job = found.thing.labels.get("tpux-job")
    of_job = f", the TPU of job {job} of {found.thing.labels.get('tpux-user')}" if job else ""
    confirm(f"Delete {name} in {found.place.zone} of project {api.project}{of_job}?", yes=yes)
    delete_and_wait(api, found, timeout=0 if no_wait else timeout)


@app.command(epilog="Example: tpux tpu start my-tpu --zone us-central2-b")
def start(
    name: Name, zone: Zone = None, project: Project = None, no_wait: NoWait = False, timeout: Timeout = 900
) -> None:
    """Start a stopped TPU of one worker."""
    _turn(name, zone, project, no_wait, timeout, verb="start", end="READY")


@app.command(epilog="Example: tpux tpu stop my-tpu --zone us-central2-b")
def stop(
    name: Name, zone: Zone = None, project: Project = None, no_wait: NoWait = False, timeout: Timeout = 900
) -> None:
    """Stop a TPU of one worker; its disk is kept. Slices of several workers cannot be stopped, only deleted."""
    _turn(name, zone, project, no_wait, timeout, verb="stop", end="STOPPED")


@app.command(epilog="Example: tpux tpu types --zone us-central2-b")
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


@app.command(epilog="Example: tpux tpu versions --zone us-central2-b")
def versions(zone: Zone = None, project: Project = None, json: Json = False) -> None:
    """Show the runtime versions (VM images) of a zone."""
    api = api_of(project)
    names = _asked(api.versions, Place(api.project, zone_of(zone)))
    emit(names) if json else typer.echo("\n".join(names))


@app.command(epilog="Example: tpux tpu orphans --delete")
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


def delete_and_wait(api: Api, found: Found, *, timeout: float) -> None:
    """Delete a TPU and wait until the cloud says that it is gone; with a timeout of 0 it only begins."""
    if found.thing.stand != "leaving":
        lookup.delete(api, found)
    if timeout:
        wait_for(lambda: _state(api, found, again=True), timeout=timeout)
    say(f"{'deleted' if timeout else 'deleting'} {found.name} in {found.place.zone}")


def _turn(
    name: str, zone: str | None, project: str | None, no_wait: bool, timeout: float, *, verb: str, end: str
) -> None:
    api = api_of(project)
    found = find(api, name, zone_of(zone))
    if len(found.thing.nodes) != 1 or found.thing.workers > 1:
        raise UsageError(f"cannot {verb} {name}: {found.thing.state}", hint="only a node of one worker can be")
    node = found.thing.nodes[0].name
    act: Callable[..., str] = api.start_node if verb == "start" else api.stop_node
    try:
        act(found.place, node)
    except CloudError as error:
        raise told(error) from error
    if not no_wait:
        wait_for(lambda: _unless(end, api, found), timeout=timeout)
    say(f"{name} in {found.place.zone}: {verb}{'ping' if verb == 'stop' else 'ing'}" if no_wait else f"{name} is {end}")


def _unless(end: str, api: Api, found: Found) -> str | None:
    state = _state(api, found)
    return None if state is not None and state.endswith(f" is {end}") else state or f"{found.name} is gone"


def _state(api: Api, found: Found, *, again: bool = False) -> str | None:
    """The state now, None where it is gone; `again` asks for its end again where it has come to a rest."""
    try:
        thing = look(api, found.place, found.name, queue=bool(found.thing.queued))
    except CloudError as error:
        if error.problem.kind not in {"transient", "throttled"}:
            raise told(error) from error
        return str(error)
    if again and thing is not None and thing.stand != "leaving":
        lookup.delete(api, Found(found.name, found.place, thing))
    return None if thing is None else thing.state


def _as_json(message: tpu_v2.Node | tpu_v2.QueuedResource) -> object:
    """The message as the API writes it: camelCase, enums by their names, and nothing that is not set."""
    return type(message).to_dict(
        message,
        use_integers_for_enums=False,
        preserving_proto_field_name=False,
        always_print_fields_with_no_presence=False,
    )


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


def _is_orphan(found: Found) -> bool:
    return labels.is_orphan(found.thing.labels) and not claimed(f"{found.place.parent}/{found.name}")


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
