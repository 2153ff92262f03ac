"""The allocator `local`: its machines are directories, and a preemption takes them and their processes away."""

from __future__ import annotations

import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path

from tpux import (
    Allocation,
    MachineStatus,
    ProvisionRequest,
    Ready,
    Released,
    TpuSection,
    Waiting,
    Worker,
    hookimpl,
    workers_of,
)
from tpux_local.processes import processes_of, send
from tpux_local.record import Record, load, save
from tpux_local.section import LocalSection

GRACE = 2.0
"""Seconds that what is left on released machines has between SIGTERM and SIGKILL."""
_LOOK = 1.0
_AGAIN = 0.1


@hookimpl
def provision(request: ProvisionRequest) -> Ready:
    """Make the workers' homes; new ones where the last were released or taken away."""
    record = load(request.directory)
    if record is None or record.state != "ready" or record.name != request.name:
        record = Record(request.name, record.generation + 1 if record else 1)
        save(request.directory, record)
    workers = _workers(request, record)
    for worker in workers:
        home = Path(worker.details["home"])
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        (home / "tmp").mkdir(mode=0o700, exist_ok=True)
    storage = str(request.directory.parent / "output")
    slices = request.tpu.node_count
    return Ready(Allocation(request.name, "local", workers, slices, storage=storage, costs=False))


@hookimpl
def inspect(request: ProvisionRequest) -> MachineStatus:
    """Whether the machines are there; this is also where a preemption that is due happens."""
    record = load(request.directory)
    if record is None or record.state == "released":
        return MachineStatus("gone", evidence="there are no machines")
    section = request.section if isinstance(request.section, LocalSection) else LocalSection()
    rehearsal = section.preempt_after is not None and record.generation == 1 and request.attempt == 1
    if rehearsal and record.preempt_at is None:
        # The first look, right after the start. (An event would tell it too, but not after a kill -9.)
        record = replace(record, preempt_at=time.time() + (section.preempt_after or 0))
        save(request.directory, record)
    if record.state == "ready" and rehearsal and time.time() >= (record.preempt_at or 0):
        record = replace(record, state="preempted")
        save(request.directory, record)
    if record.state == "preempted":
        if left := _take_away(request, record):
            return MachineStatus("unknown", evidence=f"{left} processes do not end", poll_after=_LOOK)
        return MachineStatus("preempted", evidence=f"local.preempt_after: taken away after {section.preempt_after} s")
    if not record.homes(request.directory).is_dir():
        return MachineStatus("gone", evidence=f"there is no directory {record.homes(request.directory)}")
    return MachineStatus("ready", poll_after=_LOOK if rehearsal else 30.0)


@hookimpl
def release(request: ProvisionRequest) -> Released | Waiting:
    """End all processes of the workers; their files stay, and go with the job."""
    record = load(request.directory)
    if record is None:
        return Released()
    if record.state == "preempted":
        remaining = _take_away(request, record)
        return Waiting(f"{remaining} processes do not end", _LOOK) if remaining else Released()
    left = processes_of(_homes(request, record))
    if not left:
        save(request.directory, replace(record, state="released", kill_at=None))
        return Released()
    if record.kill_at is None:
        save(request.directory, replace(record, kill_at=time.time() + GRACE))
        send(left, signal.SIGTERM)
    elif time.time() >= record.kill_at:
        send(left, signal.SIGKILL)
    return Waiting(f"{len(left)} processes are ending", poll_after=_AGAIN)


def workers_per_slice(tpu: TpuSection) -> int:
    """How many workers one slice has; of a list of accelerators the first counts, for it is always to be had.

    Raises:
        UsageError: there is no such accelerator.
    """
    return workers_of(tpu.accelerator[0] if isinstance(tpu.accelerator, list) else tpu.accelerator)


def _workers(request: ProvisionRequest, record: Record) -> tuple[Worker, ...]:
    size = workers_per_slice(request.tpu)
    return tuple(
        Worker(
            index,
            slice=index // size,
            address="127.0.0.1",
            internal_ip="127.0.0.1",
            details={"home": str(record.home(request.directory, index))},
        )
        for index in range(size * request.tpu.node_count)
    )


def _homes(request: ProvisionRequest, record: Record) -> list[Path]:
    return [Path(worker.details["home"]) for worker in _workers(request, record)]


def _take_away(request: ProvisionRequest, record: Record) -> int:
    """What a preemption does: nothing runs any more, and the disks are gone. How many processes do not end.

    It can be done again where it was broken off.
    """
    homes, away = record.homes(request.directory), request.directory / f"gone-{record.generation}"
    if homes.exists():  # out of reach first, so that nothing new is started
        homes.rename(away)
    for _ in range(100):
        if not (left := processes_of(_homes(request, record))):
            # What root made there stays, out of reach, until the job is deleted.
            shutil.rmtree(away, ignore_errors=True)
            return 0
        send(left, signal.SIGKILL)
        time.sleep(0.01)
    return len(left)
