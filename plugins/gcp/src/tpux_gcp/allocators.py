"""The allocators `tpu-vm` (nodes) and `queued-resources`: the hooks that tpux calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tpux import (
    Denied,
    Finding,
    Job,
    JsonValue,
    MachineStatus,
    Orphan,
    ProvisionRequest,
    Ready,
    Released,
    TpuSection,
    Waiting,
    Worker,
    hookimpl,
)
from tpux_gcp import existing, lookup, preflight, provision, release
from tpux_gcp.credentials import storage_options
from tpux_gcp.errors import CloudError, InvalidConfigError
from tpux_gcp.labels import owner
from tpux_gcp.project import Place, find_account, find_login, find_place, find_place_for_command
from tpux_gcp.request import RequestContext
from tpux_gcp.resource import TpuResource
from tpux_gcp.section import GcpTpuSection
from tpux_gcp.validation import apply_flags

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
    def current_workers(self, request: ProvisionRequest) -> list[Worker] | None:
        """Return the workers with the host keys that they publish now."""
        return provision.current_workers(request, queue=self._queue)

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
        return existing.find_machines(request) if self._queue else None

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
    def preflight(self, job: Job) -> list[Finding]:
        """Check the config against the cloud; create nothing."""
        return preflight.preflight(job)


tpu_vm = Allocator(queue=False)
queued_resources = Allocator(queue=True)


def inspect(request: ProvisionRequest, *, queue: bool) -> MachineStatus:
    """Return the state of the machines, from one call of the API (two for a queued resource)."""
    try:
        context = RequestContext.load(request, queue=queue)
        if context is None:
            return MachineStatus("gone", evidence="no machines were requested")
        resource = context.get_resource()
    except InvalidConfigError as error:
        return MachineStatus("unknown", evidence=str(error))
    except CloudError as error:
        return MachineStatus("unknown", evidence=str(error), poll_after=POLL)
    saved = context.saved
    if resource is None:
        return MachineStatus("gone", evidence=f"TPU {context.name} no longer exists in {saved.zone}")
    whose = owner(resource.labels, request)
    if whose == "another" or (whose not in {"ours", "former"} and not saved.borrowed):
        return MachineStatus("gone", evidence=f"TPU {context.name} in {saved.zone} now belongs to somebody else")
    return _machines(resource, preemptible=context.tpu.pricing == "preemptible")


def _machines(resource: TpuResource, *, preemptible: bool) -> MachineStatus:
    evidence, status = resource.state, resource.status
    details = {node.name: f"{node.state} {node.health}".strip() for node in resource.nodes}
    if status == "ready":
        return MachineStatus("ready", evidence=evidence, poll_after=POLL, details=details)
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
