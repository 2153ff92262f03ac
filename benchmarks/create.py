"""16 processes create 1,000 jobs concurrently: all ids are unique and consecutive, and no job is lost."""

from __future__ import annotations

import time
from multiprocessing import get_context
from pathlib import Path
from statistics import median

from benchmarks.measure import Row, alternate, cpu
from benchmarks.sandbox import TPUX, temporary_sandbox
from tpux.errors import TpuxError
from tpux.lifecycle.create import create_job
from tpux.store import Store

JOBS = 1000
PROCESSES = 16
ROUNDS = 5


def rows() -> list[Row]:
    """Check all jobs, and measure the jobs created per second and the CPU time of one `tpux create`."""
    with temporary_sandbox() as sandbox:
        config = sandbox.config("command: {cmd: echo hello}\n")
        shares = [JOBS // PROCESSES + (number < JOBS % PROCESSES) for number in range(PROCESSES)]
        context = get_context("spawn")
        with context.Pool(PROCESSES) as pool:
            pool.starmap(_create, [(sandbox.home, config, 0)] * PROCESSES)  # exclude the time of the imports
            start = time.monotonic()
            created = pool.starmap(_create, [(sandbox.home, config, share) for share in shares], chunksize=1)
            took = time.monotonic() - start
        ids = sorted(job for share in created for job in share)
        lost = [job for job in ids if not _is_complete(sandbox.store, job)]
        expected = [f"{number:06d}" for number in range(1, JOBS + 1)]
        correct = ids == expected and sandbox.store.ids() == expected and not lost
        found = f"{len(set(ids)):,} ids, {len(set(expected) - set(ids))} gaps, {len(lost)} lost"
    return [
        Row(
            f"{PROCESSES} processes create {JOBS:,} jobs concurrently",
            found,
            "unique ids, no gap, nothing lost",
            correct,
        ),
        Row("... rate", f"{JOBS / took:.0f} jobs/s"),
        Row("CPU of one `tpux create`", f"{_cpu_of_create():.2f} s"),
    ]


def _create(home: Path, config: Path, count: int) -> list[str]:
    store = Store(home)
    return [create_job(store, config, (), warn=print).directory.name for _ in range(count)]


def _cpu_of_create() -> float:
    """Return the CPU seconds of one `tpux create`, imports included."""
    with temporary_sandbox() as sandbox:
        config = sandbox.config("command: {cmd: echo hello}\n")
        (times,) = alternate(ROUNDS, lambda: cpu([TPUX, "create", config], sandbox.env))
        sandbox.tpux("wait", *sandbox.store.ids())  # create starts a supervisor: wait until it exits
    return median(times)


def _is_complete(store: Store, job: str) -> bool:
    record = store.record(job)
    try:
        state = record.refresh()
    except TpuxError:
        return False
    files = ("config.yaml", "resolved.json", "secrets.json", "events.jsonl", "state.json")
    return state.id == job and all((record.directory / name).is_file() for name in files)
