"""Allocator `local`: each worker is a directory; a preemption kills its processes and deletes the directory."""

from __future__ import annotations

import shutil
import signal
import socket
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from tpux import (
    Allocation,
    MachineStatus,
    ProvisionRequest,
    Ready,
    Released,
    TpuxError,
    Waiting,
    Worker,
    hookimpl,
)
from tpux_local.mounts import unmount
from tpux_local.processes import processes_of, send
from tpux_local.section import LocalSection
from tpux_local.state import AllocationState, load_state, save_state

KILL_GRACE = 2.0
"""Seconds between SIGTERM and SIGKILL for the processes on released machines."""
_INSPECT_INTERVAL = 1.0
_FIRST_PORT = 20000
_PORTS = 10000
"""The ports for coordinators: below those that the system gives to connections (32768 and up on Linux)."""
_RELEASE_INTERVAL = 0.1
_ANNOUNCEMENT = ".preemption-announced"
_NOTICE = f'until [ -e "$HOME/{_ANNOUNCEMENT}" ]; do sleep 0.2; done; cat "$HOME/{_ANNOUNCEMENT}"'
"""Waits on a worker for the file that announces its preemption."""


@hookimpl
def provision(request: ProvisionRequest) -> Ready:
    """Create the workers' home directories; new ones if the previous were released or preempted."""
    state = load_state(request.directory)
    if state is None or state.status != "ready" or state.name != request.name:
        generation = state.generation + 1 if state else 1
        state = AllocationState(request.name, generation, port=_free_port(int(request.labels.get("tpux-job", 0))))
        save_state(request.directory, state)
    workers = _workers(request, state)
    for worker in workers:
        home = Path(worker.details["home"])
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        (home / "tmp").mkdir(mode=0o700, exist_ok=True)
    storage = str(request.directory.parent / "output")
    notice = _NOTICE if _section(request).preempt_notice is not None else ""
    return Ready(
        Allocation(
            request.name,
            "local",
            workers,
            request.tpu.node_count,
            storage,
            costs=False,
            notice=notice,
            coordinator_port=state.port,
        )
    )


@hookimpl
def inspect(request: ProvisionRequest) -> MachineStatus:
    """Report whether the machines exist. A simulated preemption that is due is carried out here."""
    state = load_state(request.directory)
    if state is None or state.status == "released":
        return MachineStatus("gone", evidence="no machines are allocated")
    section = _section(request)
    if simulated := section.preempt_after is not None and _is_simulated(request, state, section):
        state = _advance_preemption(request, state, section)
    if state.status == "preempted":
        if left := _preempt(request, state):
            evidence = f"{left} processes still running after SIGKILL"
            return MachineStatus("unknown", evidence, poll_after=_INSPECT_INTERVAL)
        after = (section.preempt_after or 0) + (section.preempt_notice or 0)
        evidence = f"simulated preemption after {after:g} s (local.preempt_after)"
        return MachineStatus("preempted", evidence, lost=state.lost)
    if lost := _lost_slices(request, state):
        first = next(worker for worker in _workers(request, state) if worker.slice == lost[0])
        return MachineStatus("gone", evidence=f"there is no directory {first.details['home']}", lost=lost)
    return MachineStatus("ready", poll_after=_INSPECT_INTERVAL if simulated else 30.0)


@hookimpl
def release(request: ProvisionRequest) -> Released | Waiting:
    """Terminate all processes of the workers. Their files are kept until the job is deleted."""
    state = load_state(request.directory)
    if state is None:
        return Released()
    if state.status == "preempted":
        if left := _preempt(request, state):
            return Waiting(f"{left} processes still running after SIGKILL", _INSPECT_INTERVAL)
        if not state.lost:
            return Released()
    homes = _homes(request, state)
    pids = processes_of(homes)
    if not pids and (mounted := [path for home in homes if (path := unmount(home))]):
        return Waiting(f"cannot unmount {mounted[0]}", _INSPECT_INTERVAL)
    if not pids:
        save_state(request.directory, replace(state, status="released", kill_at=None))
        return Released()
    if state.kill_at is None:
        save_state(request.directory, replace(state, kill_at=time.time() + KILL_GRACE))
        send(pids, signal.SIGTERM)
    elif time.time() >= state.kill_at:
        send(pids, signal.SIGKILL)
    return Waiting(f"waiting for {len(pids)} processes to end", poll_after=_RELEASE_INTERVAL)


def _section(request: ProvisionRequest) -> LocalSection:
    return request.section if isinstance(request.section, LocalSection) else LocalSection()


def _is_simulated(request: ProvisionRequest, state: AllocationState, section: LocalSection) -> bool:
    """Return whether these machines are to be preempted: they are the n-th ones, and the n-th attempt runs on them.

    While the n-th ones are set up, the last attempt is the one before. An attempt that ended otherwise, such as by a
    stop, ends the simulation.
    """
    return state.generation == request.attempt <= section.preempt_times


def _advance_preemption(request: ProvisionRequest, state: AllocationState, section: LocalSection) -> AllocationState:
    """Return the state after what is due of a simulated preemption: its time is set, it is announced, it happens."""
    before, now = state, time.time()
    if state.preempt_at is None:
        # The first call of the attempt, right after the command's start. An event could be lost to a kill -9.
        state = replace(state, preempt_at=now + (section.preempt_after or 0))
    if state.status == "ready" and now >= (state.preempt_at or 0):
        if section.preempt_notice is None or state.announced:
            state = replace(state, status="preempted", lost=section.preempt_slices)
        else:
            _announce(request, replace(state, lost=section.preempt_slices), section.preempt_notice)
            state = replace(state, announced=True, preempt_at=now + section.preempt_notice)
    if state != before:
        save_state(request.directory, state)
    return state


def _announce(request: ProvisionRequest, state: AllocationState, seconds: float) -> None:
    """Write the file that `_NOTICE` waits for, on each worker that is to be lost; safe to repeat."""
    for worker in _lost_workers(_workers(request, state), state):
        home = Path(worker.details["home"])
        draft = home / f"{_ANNOUNCEMENT}.new"
        with suppress(FileNotFoundError):  # a user has removed the directory, which is a loss of its own
            draft.write_text(f"simulated preemption in {seconds:g} s (local.preempt_notice)\n")
            draft.replace(home / _ANNOUNCEMENT)


def _free_port(job: int) -> int:
    """Return a port on which nothing listens: each job begins its search elsewhere, so that no two find the same."""
    for offset in range(_PORTS):
        port: int = _FIRST_PORT + (job + offset) % _PORTS
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise TpuxError(
        f"no port from {_FIRST_PORT} to {_FIRST_PORT + _PORTS - 1} is free for jax.distributed's coordinator"
    )


def _workers(request: ProvisionRequest, state: AllocationState) -> tuple[Worker, ...]:
    count = request.tpu.count_workers() or 1
    return tuple(
        Worker(
            index,
            slice=index * request.tpu.node_count // count,
            address="127.0.0.1",
            internal_ip="127.0.0.1",
            details={"home": str(state.home(request.directory, index))},
        )
        for index in range(count)
    )


def _lost_slices(request: ProvisionRequest, state: AllocationState) -> tuple[int, ...]:
    """Return the slices that were preempted, or whose directories are missing."""
    workers = _workers(request, state)
    present = {worker.slice for worker in workers if Path(worker.details["home"]).is_dir()}
    missing = {worker.slice for worker in workers} - present
    preempted = {worker.slice for worker in _lost_workers(workers, state)} if state.status == "preempted" else set()
    return tuple(sorted(missing | preempted))


def _lost_workers(workers: tuple[Worker, ...], state: AllocationState) -> list[Worker]:
    return [worker for worker in workers if not state.lost or worker.slice in state.lost]


def _homes(request: ProvisionRequest, state: AllocationState) -> list[Path]:
    return [Path(worker.details["home"]) for worker in _workers(request, state)]


def _preempt(request: ProvisionRequest, state: AllocationState) -> int:
    """Kill all processes of the workers and delete their directories. Safe to repeat after an interruption.

    Returns:
        The number of processes that are still running.
    """
    homes = [Path(worker.details["home"]) for worker in _lost_workers(_workers(request, state), state)]
    preempted = request.directory / f"preempted-{state.generation}"
    preempted.mkdir(exist_ok=True, mode=0o700)
    for home in homes:
        if home.exists():  # renamed first, so that nothing can be started there
            home.rename(preempted / home.name)
    for _ in range(100):
        if not (left := processes_of(homes)):
            # Files of root, and what cannot be unmounted, remain in the renamed directory until the job is deleted.
            if not unmount(preempted):
                shutil.rmtree(preempted, ignore_errors=True)
            for parent in {home.parent for home in homes}:
                with suppress(OSError):  # the directories of other slices are there
                    parent.rmdir()
            return 0
        send(left, signal.SIGKILL)
        time.sleep(0.01)
    return len(left)
