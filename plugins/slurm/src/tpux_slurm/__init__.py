"""Plugin `slurm`: the nodes of a Slurm job are the workers. Its commands are the cluster's own.

Each process of tpux imports this, so what only jobs on Slurm need is imported when it is used.
"""

from __future__ import annotations

import os

from tpux import (
    Denied,
    Finding,
    Host,
    Job,
    JsonValue,
    MachineStatus,
    ProvisionRequest,
    Ready,
    Released,
    TpuSection,
    Waiting,
    Worker,
    hookimpl,
)
from tpux_slurm.section import SlurmTpuSection


@hookimpl
def tpu_section() -> type[TpuSection]:
    """Return the model of the section `tpu`."""
    return SlurmTpuSection


@hookimpl
def resolve() -> dict[str, JsonValue]:
    """Return the variables of this shell that Slurm's commands need: the supervisor has none of them."""
    from tpux_slurm.commands import VARIABLES

    names = (*VARIABLES, "HOME")
    return {"shown": ["SLURM_CONF"], **{name: os.environ[name] for name in names if name in os.environ}}


@hookimpl
def preflight(job: Job) -> list[Finding]:
    """Check that the cluster has what the section `tpu` requests."""
    from tpux_slurm.preflight import check

    return check(job, job.tpu) if isinstance(job.tpu, SlurmTpuSection) else []


@hookimpl
def provision(request: ProvisionRequest) -> Ready | Waiting | Denied:
    """Submit a job unless there is one, and wait until a keeper runs on each of its nodes."""
    from tpux_slurm.allocator import provision

    return provision(request)


@hookimpl
def inspect(request: ProvisionRequest) -> MachineStatus:
    """Report the state of the Slurm job, in Slurm's words."""
    from tpux_slurm.allocator import inspect

    return inspect(request)


@hookimpl
def release(request: ProvisionRequest) -> Released | Waiting:
    """Cancel the job, and wait until Slurm has none."""
    from tpux_slurm.allocator import release

    return release(request)


@hookimpl
def connect(worker: Worker, job: Job) -> Host:
    """Return a host for a node. Its step starts at first use."""
    from tpux_slurm.host import SlurmHost

    return SlurmHost(worker, job)
