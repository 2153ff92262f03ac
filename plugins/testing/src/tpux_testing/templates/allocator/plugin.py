"""Allocator `sample`: a fixed pool of directories on this machine, which stand for machines that exist already."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, cast

from pydantic import Field

from tpux import Allocation, MachineStatus, ProvisionRequest, Ready, Released, TpuSection, Waiting, Worker, hookimpl
from tpux.api import machines

POLL_AFTER = 5.0
"""Seconds until a machine that another job uses is asked for again."""


class SampleTpuSection(TpuSection):
    """Directories of this machine as workers."""

    transport: ClassVar[str] = "local"
    machines: list[str] = Field(min_length=1)
    """The names of the directories, below `~/sample`; one job at a time uses each."""

    def count_workers(self) -> int:
        """Return how many workers a job gets."""
        return len(self.machines)


@hookimpl
def tpu_section() -> type[TpuSection]:
    """Return the model of the section `tpu` for this allocator."""
    return SampleTpuSection


@hookimpl
def provision(request: ProvisionRequest) -> Ready | Waiting:
    """Take one step towards the machines, without waiting; the same request gets the same machines."""
    names = _names(request)
    for name, job in machines.acquire_all([f"sample-{name}" for name in names], request.labels).items():
        return Waiting(f"{name} is in use by job {job}", poll_after=POLL_AFTER)
    for name in names:
        _home(name).mkdir(parents=True, exist_ok=True)
    workers = [Worker(index, address=name, details={"home": str(_home(name))}) for index, name in enumerate(names)]
    return Ready(Allocation(request.name, "local", tuple(workers), borrowed=True, costs=False))


@hookimpl
def inspect(request: ProvisionRequest) -> MachineStatus:
    """Say whether the machines exist."""
    missing = [name for name in _names(request) if not _home(name).is_dir()]
    return MachineStatus("gone", evidence=f"no directory {_home(missing[0])}") if missing else MachineStatus("ready")


@hookimpl
def release(request: ProvisionRequest) -> Released:
    """Give the machines back; called again until it has returned."""
    for name in _names(request):
        machines.release(f"sample-{name}", request.labels)
    return Released()


def _names(request: ProvisionRequest) -> list[str]:
    return cast("SampleTpuSection", request.tpu).machines


def _home(name: str) -> Path:
    return Path.home() / "sample" / name
