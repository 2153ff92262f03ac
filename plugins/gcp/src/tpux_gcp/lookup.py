"""TPUs found by name, listed or waited for, for `tpux tpu`: queued resources with their nodes, and single nodes."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from tpux import JsonValue, Orphan, TpuxError, UsageError
from tpux.api import machines, say
from tpux.fields import Backoff
from tpux_gcp.api import Api
from tpux_gcp.credentials import Place, is_google
from tpux_gcp.errors import CloudError, InvalidConfigError, from_status
from tpux_gcp.labels import JOB, is_orphan
from tpux_gcp.project import ENDPOINT_VARIABLE, find_place_for_command
from tpux_gcp.resource import LOST, Location, Node, QueuedResource, TpuResource

_log = logging.getLogger(__name__)
ALL_ZONES = "-"
POLL = Backoff(first=1.0, cap=15.0, factor=1.5)
"""Between two polls of a command that waits."""


@dataclass(frozen=True)
class FoundTpu:
    """A TPU and its zone.

    Attributes:
        own: the existing nodes of a queued resource, in whichever state that is.
    """

    name: str
    location: Location
    resource: TpuResource
    own: tuple[Node, ...] = ()


@contextmanager
def cli_errors() -> Iterator[None]:
    """Raise errors of the API and of the config as the errors that the command line prints.

    Raises:
        TpuxError: the API gave an error.
        UsageError: the config is invalid.
    """
    try:
        yield
    except CloudError as error:
        raise TpuxError(error.problem.message, hint=error.problem.hint) from error
    except InvalidConfigError as error:
        raise UsageError(error.failure.evidence, hint=error.failure.hint) from error


def open_api(project: str | None) -> Api:
    """Return the API of a project, by default the environment's.

    Raises:
        TpuxError: no project is set.
    """
    with cli_errors():
        return Api(find_place_for_command(project))


def zone_or_default(api: Api, zone: str | None) -> str:
    """Return the zone, by default the environment's.

    Raises:
        UsageError: no zone is set.
    """
    if not (found := zone or api.place.zone):
        raise UsageError("no zone", hint="give --zone, or run: gcloud config set compute/zone ZONE")
    return found


def find(api: Api, name: str, zone: str) -> FoundTpu:
    """Return the TPU of a name: the queued resource, or else the node.

    Raises:
        UsageError: the API answers that neither exists.
        TpuxError: the API failed; what exists is unknown.
    """
    location = Location(api.project, zone)
    with cli_errors():
        resource = api.tpu(location, name, queue=True) or api.leftover_nodes(location, name, ())
    if resource is None:
        raise UsageError(
            f"no TPU {name} in {zone} of project {api.project} (neither a queued resource nor a node)",
            hint="`tpux tpu list` shows all TPUs of the project",
        )
    return FoundTpu(name, location, resource)


def list_tpus(api: Api, zone: str | None) -> tuple[list[FoundTpu], list[str]]:
    """List the TPUs of a zone, or of all zones: queued resources with their nodes, then the other nodes.

    Returns:
        The TPUs, and the zones that the API could not reach, whose TPUs are missing.

    Raises:
        TpuxError: the API failed.
    """
    location, unreachable = Location(api.project, zone or ALL_ZONES), list[str]()
    with cli_errors():
        queued_resources, nodes = api.queued_resources(location, unreachable), api.nodes(location, unreachable)
    remaining = {(node.zone, node.name): node for node in nodes}
    found = []
    for queued in queued_resources:
        own = {name: node for name in queued.node_ids if (node := remaining.pop((queued.zone, name), None))}
        found.append(_found(queued, own, Location(api.project, queued.zone)))
    found += [
        FoundTpu(node.name, Location(api.project, node.zone), TpuResource.from_node(node))
        for node in remaining.values()
    ]
    return found, sorted({location.rpartition("/")[2] for location in unreachable})


def look_again(api: Api, tpu: FoundTpu) -> FoundTpu | None:
    """Return a TPU of a list as it is now, None if it no longer exists. Each node is asked for, as a list may lack one.

    Raises:
        TpuxError: the API failed.
    """
    location, name = tpu.location, tpu.resource.queued_resource
    with cli_errors():
        if name and (queued := api.queued_resource(location, name)) is not None:
            asked = ((each, api.node(location, each)) for each in queued.node_ids)
            return _found(queued, {each: node for each, node in asked if node is not None}, location)
        node = api.node(location, tpu.name)
    return None if node is None else FoundTpu(node.name, location, TpuResource.from_node(node))


def _found(queued: QueuedResource, own: Mapping[str, Node], location: Location) -> FoundTpu:
    return FoundTpu(queued.name, location, TpuResource.from_queued(queued, own), tuple(own.values()))


def wait_for(state: Callable[[], str | None], *, timeout: float) -> None:
    """Poll until `state` returns None; print each change.

    Raises:
        TpuxError: the timeout has passed.
    """
    rate, printed = machines.clock_rate(), ""
    deadline = time.monotonic() + timeout / rate
    for poll in itertools.count():
        if (current := state()) is None:
            return
        if current != printed:
            say(current)
        printed = current
        if time.monotonic() > deadline:
            raise TpuxError(
                f"timed out after {timeout:.0f} s: {current}",
                hint="it continues in the cloud: `tpux tpu status` shows its state",
            )
        time.sleep(POLL.delay(poll) / rate)


def state_unless_ready(api: Api, location: Location, name: str, operation_name: str, *, queue: bool) -> str | None:
    """Return the state of a new TPU, None once it is ready.

    Raises:
        CloudError: it cannot become ready.
    """
    resource = api.tpu(location, name, queue=queue)
    if resource is None:
        operation = api.operation(operation_name)
        if operation is not None and operation.code:
            raise CloudError(from_status(operation.code, operation.message, api.project))
        return f"{name} is requested"
    if resource.status in LOST:
        code, message = resource.error or (13, resource.state)
        raise CloudError(from_status(code, message, api.project))
    return None if resource.status == "ready" else resource.state


def state_of(api: Api, found: FoundTpu, *, delete: Callable[[], bool] = lambda: False) -> str | None:
    """Return the current state, None if the TPU no longer exists.

    Args:
        api: the API.
        found: the TPU.
        delete: whether to repeat the deletion if the API ignored it, as it may in some states.
    """
    with cli_errors():
        try:
            resource = api.tpu(found.location, found.name, queue=bool(found.resource.queued_resource))
        except CloudError as error:
            if error.problem.kind not in {"transient", "throttled"}:
                raise
            return str(error)
        if resource is not None and resource.status != "deleting" and delete():
            api.delete(found.location, resource)
    return None if resource is None else resource.state


def orphans_of(found: Sequence[FoundTpu]) -> list[FoundTpu]:
    """Return the TPUs that a job of this store created and that no job holds, or has borrowed.

    A queued resource keeps the labels of the job that created it when another takes it over: its nodes count. It is no
    orphan while one of them is missing, which may only be missing from a list, or while the state is unknown.
    """
    return [
        tpu
        for tpu in found
        if not (tpu.resource.missing or tpu.resource.unknown)
        and all(is_orphan(node.labels) for node in tpu.own)
        and (tpu.own or is_orphan(tpu.resource.labels))
        and not any(map(machines.holder_of, tpu.resource.lease_names(tpu.location, tpu.name)))
    ]


def find_orphans(places: Sequence[Mapping[str, JsonValue]]) -> list[Orphan]:
    """Return the orphans in all zones of the projects of these places; a project that cannot be asked is left out."""
    distinct = {replace(Place.from_json(place), zone="") for place in places}
    orphans: list[Orphan] = []
    for place in sorted(distinct, key=lambda place: (place.endpoint, place.project)):
        try:
            found, unreachable = list_tpus(Api(place), None)
        except (TpuxError, InvalidConfigError) as error:
            _log.warning("no search for orphans in project %s: %s", place.project, error)
            continue
        if unreachable:
            _log.warning("no search for orphans in %s of project %s", ", ".join(unreachable), place.project)
        orphans += [_orphan(tpu, place) for tpu in orphans_of(found)]
    return orphans


def _orphan(tpu: FoundTpu, place: Place) -> Orphan:
    zone, resource = tpu.location.zone, tpu.resource
    endpoint = "" if is_google(place.endpoint) else f"{ENDPOINT_VARIABLE}={place.endpoint} "
    return Orphan(
        tpu.name,
        f"{zone} of project {place.project}",
        f"{resource.accelerator}, {resource.state}, of job {resource.labels[JOB]}",
        f"{endpoint}tpux tpu delete {tpu.name} --zone {zone} --project {place.project}",
    )
