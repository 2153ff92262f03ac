"""Allocators `tpu-vm` (nodes) and `queued-resources`: TPU VMs of Google Cloud."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace

from tpux import (
    Command,
    Denied,
    Finding,
    Job,
    JsonValue,
    MachineStatus,
    Orphan,
    ProvisionRequest,
    Ready,
    Released,
    Result,
    Step,
    TpuSection,
    TpuxError,
    UsageError,
    Waiting,
    Worker,
    hookimpl,
)
from tpux_gcp import borrowing, login, lookup, preflight, provision, release
from tpux_gcp.api import Api
from tpux_gcp.credentials import Place, storage_options
from tpux_gcp.errors import START_EMULATOR, CloudError, InvalidConfigError
from tpux_gcp.existence import Absent, Exists, MayAppear, look_up
from tpux_gcp.lookup import FoundTpu, cli_errors, list_tpus
from tpux_gcp.project import find_account, find_login, find_place, find_place_for_command
from tpux_gcp.reports import reports
from tpux_gcp.request import RequestContext, SavedState
from tpux_gcp.resource import TpuResource
from tpux_gcp.section import GcpTpuSection, apply_flags
from tpux_gcp.spec import Candidate
from tpux_gcp.workers import add_public_keys, build_allocation, published_by, published_or_nothing

SHOWN = ("project", "zone", "endpoint", "file", "account", "quota_project", "login_user")
"""What `tpux show` prints of the answer of `resolve`."""
POLL = 30.0
"""Seconds between two inspections of machines in use."""


class Allocator:
    """One allocator; both modes share their hooks.

    Args:
        queue: create TPUs through queued resources. A multislice always needs one.
    """

    def __init__(self, *, queue: bool) -> None:
        self._queue = queue

    @hookimpl
    def provision(self, request: ProvisionRequest) -> Ready | Waiting | Denied:
        """Take one step towards the requested machines."""
        return provision.provision(request, queue=self._queue)

    @hookimpl
    def inspect(self, request: ProvisionRequest) -> MachineStatus:
        """Return the state of the machines. An API error is `unknown`, never `gone`."""
        return inspect(request, queue=self._queue)

    @hookimpl
    def release(self, request: ProvisionRequest) -> Released | Waiting:
        """Take one step towards releasing the machines."""
        return release.release(request, queue=self._queue)

    @hookimpl
    def tpu_section(self) -> type[TpuSection]:
        """Return the model of the section `tpu`."""
        return GcpTpuSection

    @hookimpl
    def resolve(self, job: Job) -> dict[str, JsonValue]:
        """Return project, default zone, endpoint, credentials, and who logs in, as this shell has them."""
        if job.machines:  # for `find_machines`, which one of the two allocators answers
            place = find_place_for_command(None) if self._queue else Place()
        else:
            try:
                tpu = apply_flags(job.tpu)
            except InvalidConfigError:
                return {}  # preflight reports it
            place = find_place(tpu.project, tpu.endpoint)
        login: dict[str, JsonValue] = {"login_user": find_login(place), "login_account": find_account(place)}
        return {**place.to_json(), **login, "shown": [*SHOWN]}

    @hookimpl
    def find_machines(self, request: ProvisionRequest) -> Ready | Waiting | None:
        """Return the existing TPU of a name; one of the two allocators looks for both kinds."""
        return _find_machines(request) if self._queue else None

    @hookimpl
    def find_orphans(self, places: Sequence[Mapping[str, JsonValue]]) -> list[Orphan]:
        """Return the TPUs in the places' projects that jobs of this store created and no job holds."""
        return lookup.find_orphans(places)

    @hookimpl
    def storage_options(self, job: Job, scheme: str) -> dict[str, object] | None:
        """Return how gcsfs opens the job's bucket: with the credentials with which its TPUs are requested."""
        if scheme not in {"gs", "gcs"}:
            return None
        return storage_options(Place.from_json(job.resolved[job.tpu.allocation_mode]))

    @hookimpl
    def monitor(self, job: Job, worker: Worker) -> Generator[Step, Result, list[Finding]] | None:
        """Warn of planned maintenance, and of symptoms that Google reports; no step runs on the worker."""
        return _reports(job, worker) if self._serves(job) else None

    @hookimpl
    def diagnose(self, job: Job, worker: Worker) -> Generator[Step, Result, list[Finding]] | None:
        """Report planned maintenance, and symptoms that Google reports; no step runs on the worker."""
        return _reports(job, worker) if self._serves(job) else None

    def _serves(self, job: Job) -> bool:
        return job.tpu.allocation_mode == ("queued-resources" if self._queue else "tpu-vm")

    @hookimpl
    def prepare_command(self, job: Job, command: Command) -> Command:
        """Return the command as it is, once the claim of a borrowed TPU was seen again."""
        borrowing.check_before_start(job)
        return command

    @hookimpl
    def preflight(self, job: Job) -> list[Finding]:
        """Check the config against the cloud; create nothing."""
        return preflight.preflight(job)


tpu_vm = Allocator(queue=False)
queued_resources = Allocator(queue=True)


def _reports(job: Job, worker: Worker) -> Generator[Step, Result, list[Finding]]:
    yield from ()
    return reports(job, worker)


def inspect(request: ProvisionRequest, *, queue: bool) -> MachineStatus:
    """Return the state of the machines, from one call of the API (two for a queued resource) while they exist.

    To describe the workers takes another call for each node; the state is unknown if the API cannot describe them all.
    """
    try:
        context = RequestContext.load(request, queue=queue)
        if context is None:
            return MachineStatus("gone", evidence="no machines were requested")
        _, found = look_up(context)
        login.accepted(request.directory)
    except InvalidConfigError as error:
        return MachineStatus("unknown", evidence=str(error))
    except CloudError as error:
        hint = error.problem.hint if error.problem.kind == "auth" else ""
        return MachineStatus("unknown", evidence=str(error), poll_after=POLL, hint=hint)
    saved = context.saved
    if isinstance(found, MayAppear):
        return MachineStatus("unknown", evidence=found.why, poll_after=POLL)
    if isinstance(found, Absent):
        return MachineStatus("gone", evidence=f"TPU {context.name} no longer exists in {saved.zone}")
    resource = found.resource
    whose = borrowing.owner(context, resource)
    if whose == "another" or (whose not in {"ours", "former"} and not saved.borrowed):
        return MachineStatus("gone", evidence=f"TPU {context.name} in {saved.zone} now belongs to somebody else")
    lost, soon = borrowing.look_after(context, resource) if saved.borrowed else ("", None)
    if lost:
        return MachineStatus("gone", evidence=lost)
    status = _status(resource, preemptible=context.tpu.pricing == "preemptible")
    status = status if soon is None else replace(status, poll_after=soon)
    if not request.describe_workers or status.state != "ready":
        return status
    try:
        return replace(status, workers=_workers(context, resource))
    except TpuxError as error:
        return MachineStatus("unknown", evidence=str(error), poll_after=POLL)


def _status(resource: TpuResource, *, preemptible: bool) -> MachineStatus:
    evidence, status = resource.state, resource.status
    details = {node.name: f"{node.state} {node.health}".strip() for node in resource.nodes}
    if status == "ready":
        return MachineStatus("ready", evidence=evidence, poll_after=POLL, details=details)
    if status == "creating" and resource.missing:
        return MachineStatus("unknown", evidence=evidence, poll_after=POLL)
    if status in {"queued", "creating"}:
        return MachineStatus("waiting", evidence=evidence, poll_after=POLL, details=details)
    if status == "error":  # state UNKNOWN, or an ACTIVE queued resource without its nodes
        return MachineStatus("unknown" if resource.nodes else "gone", evidence=evidence, details=details)
    if resource.suspended_by_user or status in {"stopped", "failed"}:
        return MachineStatus("gone", evidence=evidence, details=details)
    if status == "maintenance":  # TERMINATED: also the end of a preemptible node's 24 hours
        return MachineStatus("preempted" if preemptible else "maintenance", evidence=evidence, details=details)
    preempted = status == "preempted" or "SUSPENDING" in evidence
    return MachineStatus("preempted" if preempted else "gone", evidence=evidence, details=details)


def _workers(context: RequestContext, resource: TpuResource) -> tuple[Worker, ...]:
    """Return the workers of a ready TPU with the host keys that they publish now.

    Raises:
        TpuxError: the API failed, or does not have the host keys of all workers.
    """
    where = f"TPU {context.name}"
    try:
        workers = build_allocation(context, resource, published_by).workers
    except (CloudError, InvalidConfigError) as error:
        raise TpuxError(str(error), where=where) from error
    if missing := [worker.index for worker in workers if "host_keys" not in worker.details]:
        raise TpuxError(f"worker {missing[0]} publishes no host key", where=where)
    return workers


def _find_machines(request: ProvisionRequest) -> Ready | Waiting | None:
    """Return the ready TPU of the request's name, in any zone; add the public keys to it first.

    Raises:
        TpuxError: no project is known, the API failed, or the TPU is not ready.
    """
    place = Place.from_json(request.resolved)
    if not place.project:
        raise TpuxError(
            "no Google Cloud project in the environment or gcloud's configuration, and no emulator of yours answers",
            hint=f"for a TPU: gcloud config set project PROJECT, or {START_EMULATOR}",
        )
    context = RequestContext.load(request, queue=True)
    if context is None:
        if (found := _find(Api(place), request.name, place.zone)) is None:
            return None
        candidate = Candidate(found.resource.accelerator, found.location.zone)
        saved = SavedState.begin(place, request, candidate)
        return Waiting(f"found {request.name} in {found.location.zone}", 0, saved.to_json())
    with cli_errors():
        _, existing = look_up(context)
        if not isinstance(existing, Exists):
            raise TpuxError(f"TPU {request.name} cannot be used: it no longer exists", where=context.saved.zone)
        resource = existing.resource
        if resource.status != "ready" or not resource.workers:
            raise TpuxError(f"TPU {request.name} cannot be used: {resource.state}", where=context.saved.zone)
        if (waiting := add_public_keys(context, resource)) is not None:
            return waiting
        allocation = build_allocation(context, resource, published_or_nothing)
        return Ready(allocation, context.saved.to_json())


def _find(api: Api, name: str, zone: str) -> FoundTpu | None:
    """Return the TPU of this name in any zone; of several the one in the default zone.

    Raises:
        UsageError: several zones have one, and none of them is the default zone.
        TpuxError: the API failed, or it may be in a zone that the API could not reach.
    """
    try:
        every, unreachable = list_tpus(api, None)
    except (CloudError, InvalidConfigError) as error:
        raise TpuxError(str(error)) from error
    found = [tpu for tpu in every if tpu.name == name]
    if unreachable and not any(tpu.location.zone == zone for tpu in found):
        zones = ", ".join(unreachable)
        does = "does" if len(unreachable) == 1 else "do"
        raise TpuxError(f"unknown whether there is a TPU {name}: {zones} {does} not answer", hint="try again later")
    if len(found) > 1:
        zones = ", ".join(tpu.location.zone for tpu in found)
        if not (found := [tpu for tpu in found if tpu.location.zone == zone]):
            hint = f"choose one: CLOUDSDK_COMPUTE_ZONE={zones.partition(',')[0]} tpux ssh {name}"
            raise UsageError(f"TPUs called {name} exist in {zones}", hint=hint)
    return found[0] if found else None
