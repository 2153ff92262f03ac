"""The allocator `tpu-vm`: nodes, asked for directly. Several slices are had by a queued resource all the same."""

from __future__ import annotations

from tpux import Denied, Finding, Job, MachineStatus, ProvisionRequest, Ready, Released, Waiting, hookimpl
from tpux_gcp import inspecting, preflighting, provisioning, releasing


@hookimpl
def provision(request: ProvisionRequest) -> Ready | Waiting | Denied:
    """Take one step towards the machines."""
    return provisioning.provision(request, queue=False)


@hookimpl
def inspect(request: ProvisionRequest) -> MachineStatus:
    """What state they are in."""
    return inspecting.inspect(request, queue=False)


@hookimpl
def release(request: ProvisionRequest) -> Released | Waiting:
    """Take one step towards nothing left that costs money."""
    return releasing.release(request, queue=False)


@hookimpl
def preflight(job: Job) -> list[Finding]:
    """Credentials, project, zone, accelerator, version and name, before anything is created."""
    return preflighting.preflight(job)
