"""`tpux reapply` (Machines): delete a TPU that no job uses, and create it again as it was.

What is to be created is on disk before anything is deleted, so the command continues when it is typed again. The user
holds the TPU meanwhile: no job takes it.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, cast

import typer

from tpux import TpuxError, UsageError, api
from tpux.api import machines
from tpux.api.options import DURATION
from tpux_gcp.api import Api
from tpux_gcp.claims import PREFIX, claim_of_another, user_of
from tpux_gcp.errors import NO_CAPACITY, CloudError
from tpux_gcp.labels import JOB
from tpux_gcp.lookup import FoundTpu as Found
from tpux_gcp.lookup import cli_errors, open_api, state_of, state_unless_ready, wait_for, zone_or_default
from tpux_gcp.messages import Message
from tpux_gcp.registered import Registered, find_registered
from tpux_gcp.resource import LOST, Location, TpuResource
from tpux_gcp.zones import full_zone

app = api.new_app()
NODE_FIELDS = (
    "acceleratorType", "acceleratorConfig", "runtimeVersion", "networkConfig", "networkConfigs", "schedulingConfig",
    "labels", "metadata", "tags", "serviceAccount", "description", "autocheckpointEnabled", "shieldedInstanceConfig",
    "dataDisks",
)  # fmt: skip
"""What a request for a node may have; the rest of its description is the API's."""
QUEUED_FIELDS = ("spot", "guaranteed", "reservationName", "provisioningModel", "runDuration")
PASSING = NO_CAPACITY | {"transient", "throttled", "busy"}
"""Problems after which it is tried again."""
DELETION = 900.0
"""Seconds that a deletion may take."""
NOTE = "reapply"
"""What the hold of this command says to other users."""


@dataclass(frozen=True)
class Plan:
    """What is created again.

    Attributes:
        name: the name of the queued resource, or else of the node.
        queued: it is a queued resource.
        message: what is sent to the API.
        deleted: the former one is gone: what is there is the new one.
    """

    name: str
    queued: bool
    message: Message
    deleted: bool = False


@app.command(epilog="Example: tpux reapply v4-32-p2 --retry-every 1m --for 6h")
def reapply(
    tpu: Annotated[str, typer.Argument(metavar="TPU", help="Alias or name of a TPU that no job created.")],
    zone: Annotated[
        str | None, typer.Option("--zone", help="Zone of a TPU that you have not registered. Default: gcloud's.")
    ] = None,
    project: Annotated[str | None, typer.Option("--project", help="Google Cloud project. Default: gcloud's.")] = None,
    every: Annotated[
        float,
        typer.Option("--retry-every", click_type=DURATION, show_default="1m", help="Time between tries, such as 1m."),
    ] = 60.0,
    lasting: Annotated[
        float, typer.Option("--for", click_type=DURATION, show_default="1h", help="How long to try, such as 6h.")
    ] = 3600.0,
    yes: Annotated[bool, typer.Option("-y", "--yes", help="Do not ask for confirmation.")] = False,
) -> None:
    """Delete a TPU, such as a preempted one, and create it again as it was.

    It tries again while the zone has no capacity. Typed again after Ctrl-C, it continues. What is on the boot disks is
    lost. Jobs get new machines by themselves: this is for TPUs that no job created.
    """
    known = _find_own(tpu, zone, project)
    cloud = open_api(known.project if known else project)
    location = Location(
        cloud.project, known.zone if known else zone_or_default(cloud, full_zone(zone) if zone else None)
    )
    name, path = known.name if known else tpu, _path(location, known.name if known else tpu)
    begun, resource, leases = _load(path), *_look(cloud, location, name)
    if resource is None and begun is None:
        hint = f"tpux tpu create {name} --type TYPE --zone {location.zone}"
        raise UsageError(f"no TPU {name} in {location.zone}: what it was is not known", hint=hint)
    _require_unused(name, resource, leases)
    if begun and begun.deleted and resource and resource.status == "ready":
        path.unlink()
        if machines.lease_of(leases[0]).get("note") == NOTE:  # that of the earlier call
            machines.end_hold(leases)
        api.say(f"{name} in {location.zone} is READY: an earlier call has created it again")
        return
    state = f" ({resource.accelerator}, {resource.state})" if resource else ""
    what = f"Delete {name}{state} with its boot disks, and create it again" if resource else f"Create {name} again"
    api.confirm(f"{what} in {location.zone} of project {cloud.project}?", yes=yes)
    deadline = time.monotonic() + lasting / machines.clock_rate()
    hold = Hold(name, leases, time.time() + (lasting + DELETION) / machines.clock_rate())
    hold.require()
    try:
        with cli_errors():
            resource, _ = _look(cloud, location, name)  # as it is since nobody else can take it
            _require_unused(name, resource, leases)
            plan = begun if resource is None or (begun and _is_coming(resource)) else None
            if plan is None:
                plan = _plan_of(cloud, location, name, resource)
                _store(path, plan)
            _apply(cloud, location, plan, path, deadline, every, hold, again=plan is begun)
    finally:
        hold.end()
    path.unlink(missing_ok=True)
    api.say(f"{name} in {location.zone} is READY")


def _find_own(word: str, zone: str | None, project: str | None) -> Registered | None:
    """Return the TPU that this user has registered as a word; None if it is a name, as with another zone or project.

    Raises:
        UsageError: another user has registered it: what that user says must not decide what is deleted.
    """
    if (known := find_registered(word)) is None:
        return None
    if known.user and not zone:
        raise UsageError(
            f"{known.user} has registered {word}, not you: {known.name} in {known.zone} of project {known.project}",
            hint=f"if you mean that one: tpux reapply {known.name} --zone {known.zone} --project {known.project}",
        )
    elsewhere = (zone and full_zone(zone) != known.zone) or (project and project != known.project)
    return None if known.user or elsewhere else known


def _look(cloud: Api, location: Location, name: str) -> tuple[TpuResource | None, list[str]]:
    """Return a TPU, None if it does not exist, and the names under which it is leased."""
    with cli_errors():
        resource = cloud.tpu(location, name, queue=True)
    return resource, resource.lease_names(location, name) if resource else [f"{location.parent}/{name}"]


class Hold:
    """The user's hold of a TPU until it is there again. One that the user had before is as it was afterwards.

    Args:
        name: the TPU.
        leases: the names under which it is leased.
        until: the end, in seconds since the epoch.
    """

    def __init__(self, name: str, leases: list[str], until: float) -> None:
        self._name, self._leases = name, leases
        before = machines.lease_of(leases[0])
        given, self._note = before.get("until"), str(before.get("note", NOTE))
        # That of a call that was cut off ends with this one.
        self._given = float(given) if isinstance(given, (int, float)) and self._note != NOTE else 0.0
        self._until = max(until, self._given)

    def require(self) -> None:
        """Hold the TPU; a job of the user that names it may have taken the hold over.

        Raises:
            UsageError: a job or another user has it.
        """
        if others := machines.hold(self._leases, until=self._until, note=self._note):
            _require_unused(self._name, None, self._leases)
            raise UsageError(f"{self._name} is in use by now: {', '.join(others.values())}", hint="tpux find")

    def end(self) -> None:
        """End the hold, or give the one before its end and its note back."""
        if machines.lease_of(self._leases[0]).get("until") != self._until:
            return  # it is a job's, or the user has given it another end meanwhile
        if self._given > time.time():
            machines.hold(self._leases, until=self._given, note=self._note)
        else:
            machines.end_hold(self._leases)


def _is_coming(resource: TpuResource) -> bool:
    return resource.status not in LOST and resource.status not in {"ready", "deleting"}


def _require_unused(name: str, resource: TpuResource | None, leases: list[str]) -> None:
    for lease in filter(None, map(machines.lease_of, leases)):
        user = str(lease["tpux-user"])
        their = "" if user == machines.user() else f"{user} can type: "
        if lease["tpux-job"] != machines.HOLD:
            job = str(lease["tpux-job"]).lstrip("0")
            raise UsageError(f"{name} is in use by job {job} of {user}", hint=f"{their}tpux stop {job} --release")
        if their:
            raise UsageError(f"{name} is held by {user}", hint=f"{their}tpux release {name}")
    for labels in (resource.labels, *(node.labels for node in resource.nodes)) if resource else ():
        if JOB in labels:
            job, user = user_of(labels)
            hint = f"tpux resume {job.lstrip('0')} requests new ones; `tpux tpu delete {name}` deletes it"
            raise UsageError(f"{name} is the TPU of job {job.lstrip('0')} of {user}", hint=hint)
        if (claim := claim_of_another(labels, machines.store_id())) is not None:
            raise UsageError(f"{name} is in use by {claim.user or 'a job'} in another store ({claim.store})")


def _plan_of(cloud: Api, location: Location, name: str, resource: TpuResource | None) -> Plan:
    """Return what creates a TPU as it is.

    Raises:
        UsageError: it no longer exists.
    """
    if queued := resource.queued_resource if resource else "":
        message = cloud.queued_resource_message(location, queued)
        if message is not None:
            tpu = cast("Mapping[str, Sequence[Mapping[str, Message]]]", message["tpu"])
            specs = [{**spec, "node": _node(spec["node"])} for spec in tpu["nodeSpec"]]
            kept = {key: message[key] for key in QUEUED_FIELDS if key in message}
            return Plan(queued, True, {"tpu": {"nodeSpec": specs}, **kept})
    elif resource:
        message = cloud.node_message(location, name)
        if message is not None:
            return Plan(name, False, _node(message))
    raise UsageError(f"{name} no longer exists", hint=f"tpux tpu create {name} --type TYPE")


def _node(message: Message) -> dict[str, object]:
    """Return the request for a node that has this description, without the claims and the owner of the former one."""
    node = {key: message[key] for key in NODE_FIELDS if key in message}
    if node.get("acceleratorType"):
        node.pop("acceleratorConfig", None)  # the same; the API takes one of them
    if isinstance(labels := node.get("labels"), dict):
        node["labels"] = {key: value for key, value in labels.items() if not key.startswith(PREFIX)}
    return node


def _apply(
    cloud: Api, location: Location, plan: Plan, path: Path, deadline: float, every: float, hold: Hold, *, again: bool
) -> None:
    """Delete what is there, and create it, until it is ready.

    Args:
        cloud: the API.
        location: the zone.
        plan: what is created.
        path: where the plan is kept.
        deadline: until when it is tried, by the monotonic clock.
        every: seconds between two tries.
        hold: the hold under which something is deleted.
        again: an earlier call has begun: what is being created now is waited for.

    Raises:
        TpuxError: it was not ready in time.
        UsageError: a job has taken the TPU over.
        CloudError: another try would not help.
    """
    rate = machines.clock_rate()
    while True:
        try:
            resource = cloud.tpu(location, plan.name, queue=plan.queued)
            operation = ""
            if again and resource is not None and resource.status == "ready":
                return
            if resource is not None and not (again and _is_coming(resource)):
                hold.require()
                _require_unused(plan.name, resource, resource.lease_names(location, plan.name))
                _delete(cloud, Found(plan.name, location, resource))
                resource = None
            again = True  # also if the request is not answered: what is there from now on is the new one
            if resource is None:
                _store(path, replace(plan, deleted=True))
                operation = _create(cloud, location, plan)
            state = partial(state_unless_ready, cloud, location, plan.name, operation, queue=plan.queued)
            wait_for(state, timeout=max((deadline - time.monotonic()) * rate, 0.0))
        except CloudError as error:
            if error.problem.kind not in PASSING:
                raise
            if time.monotonic() + every / rate > deadline:
                hint = f"type it again, with a longer --for: what is created is kept in {path}"
                raise TpuxError(f"{plan.name} was not created: {error.problem.message}", hint=hint) from error
            api.say(f"{error.problem.message}; trying again in {every:.0f} s")
            time.sleep(every / rate)
        else:
            return


def _delete(cloud: Api, found: Found) -> None:
    if found.resource.status != "deleting":
        cloud.delete(found.location, found.resource)
    wait_for(lambda: state_of(cloud, found, delete=lambda: True), timeout=DELETION)


def _create(cloud: Api, location: Location, plan: Plan) -> str:
    if plan.queued:
        return cloud.create_queued_resource(location, plan.name, plan.message, str(uuid.uuid4()))
    return cloud.create_node(location, plan.name, plan.message)


def _path(location: Location, name: str) -> Path:
    return api.home() / "pool" / "reapply" / f"{location.project}-{location.zone}-{name}.json"


def _load(path: Path) -> Plan | None:
    """Return the plan of a call that has not finished.

    Raises:
        TpuxError: the file cannot be read.
    """
    try:
        return Plan(**json.loads(path.read_text()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:
        raise TpuxError(f"what is to be created cannot be read: {error}", where=str(path)) from error


def _store(path: Path, plan: Plan) -> None:
    """Write a plan, which may have secrets in its metadata: for nobody else to read."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:  # its mode is 0600
        json.dump(asdict(plan), file)
        file.flush()
        os.fsync(file.fileno())
    Path(file.name).replace(path)
