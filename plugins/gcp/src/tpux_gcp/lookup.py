"""TPUs found by name or listed, for `tpux tpu`: queued resources with their nodes, and single nodes."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from tpux import JsonValue, Orphan, TpuxError, UsageError
from tpux.api import lease_holder
from tpux_gcp.api import Api
from tpux_gcp.credentials import Place, is_google
from tpux_gcp.errors import CloudError, InvalidConfigError
from tpux_gcp.labels import JOB, is_orphan
from tpux_gcp.project import ENDPOINT_VARIABLE, find_place_for_command
from tpux_gcp.resource import Location, TpuResource

_log = logging.getLogger(__name__)
ALL_ZONES = "-"


@dataclass(frozen=True)
class FoundTpu:
    """A TPU and its zone."""

    name: str
    location: Location
    resource: TpuResource


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
        The TPUs, and the locations that the API could not reach, whose TPUs are missing.

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
        found.append(FoundTpu(queued.name, Location(api.project, queued.zone), TpuResource.from_queued(queued, own)))
    found += [
        FoundTpu(node.name, Location(api.project, node.zone), TpuResource.from_node(node))
        for node in remaining.values()
    ]
    return found, sorted(set(unreachable))


def orphans_of(found: Sequence[FoundTpu]) -> list[FoundTpu]:
    """Return the TPUs that a job of this store created and that no job holds, or has borrowed."""
    return [
        tpu for tpu in found if is_orphan(tpu.resource.labels) and not lease_holder(f"{tpu.location.parent}/{tpu.name}")
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
