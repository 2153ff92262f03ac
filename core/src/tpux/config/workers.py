"""How many workers a config asks for, and whether the rest of it agrees."""

from __future__ import annotations

import re

from tpux.accelerators import GENERATIONS, workers_of
from tpux.config.tree import Spot, Written
from tpux.errors import Problem, UsageError
from tpux.sections import CommandSection, JobSection, TpuSection


def count_workers(tpu: TpuSection, written: Written, problems: list[Problem], warnings: list[Problem]) -> int | None:
    """How many workers the job gets; None where only the allocator can know.

    Args:
        tpu: the section.
        written: the config.
        problems: takes accelerators that do not exist.
        warnings: takes those that may be newer than tpux: only the cloud knows them.
    """
    if tpu.accelerator is None:
        return tpu.node_count if tpu.allocation_mode == "local" else None
    if isinstance(tpu.accelerator, str):
        tried = [_workers_of(tpu.accelerator, written.spot("tpu", "accelerator"), tpu, problems, warnings)]
    else:
        tried = [
            _workers_of(accelerator, written.spot("tpu", "accelerator", index), tpu, problems, warnings)
            for index, accelerator in enumerate(tpu.accelerator)
        ]
    return tried[0] * tpu.node_count if tried and tried[0] else None


def _workers_of(
    accelerator: str, spot: Spot, tpu: TpuSection, problems: list[Problem], warnings: list[Problem]
) -> int | None:
    try:
        return workers_of(accelerator)
    except UsageError as error:
        known = tpu.allocation_mode == "local" or _is_known(accelerator)
        (problems if known else warnings).append(Problem(spot.place, error.message, error.hint))
        return None


def check_workers(
    job: JobSection, command: CommandSection, workers: int | None, written: Written, problems: list[Problem]
) -> None:
    """Add what contradicts the number of workers to `problems`."""
    if workers is not None and job.worker_num not in {None, workers}:
        message = f"job.worker_num is {job.worker_num}, and the accelerator has {_count(workers)}"
        problems.append(Problem(written.spot("job", "worker_num").place, message, f"write {workers}, or leave it out"))
    if command.workers == "all":
        return
    chosen = command.workers if isinstance(command.workers, list) else [command.workers]
    if not chosen:
        problems.append(
            Problem(written.spot("command", "workers").place, "command.workers names no worker", 'write "all"')
        )
    for index, worker in enumerate(chosen):
        path = ("command", "workers", index) if isinstance(command.workers, list) else ("command", "workers")
        if worker in chosen[:index]:
            problems.append(Problem(written.spot(*path).place, f"worker {worker} is here twice", "name it once"))
        elif workers is not None and worker >= workers:
            message = f"there is no worker {worker}: the job has {_count(workers)}, counted from 0"
            problems.append(Problem(written.spot(*path).place, message))


def _is_known(accelerator: str) -> bool:
    """Whether the table of accelerators can judge it: not where it looks like a generation yet to come."""
    match = re.fullmatch(r"(v\d\w*)-\d+", accelerator)
    return match is None or match[1] in GENERATIONS


def _count(workers: int) -> str:
    return "1 worker" if workers == 1 else f"{workers} workers"
