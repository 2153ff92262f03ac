"""16 processes that create 1,000 jobs together: every id once, none left out, none lost."""

from __future__ import annotations

import time
from multiprocessing import get_context
from pathlib import Path
from statistics import median

from benchmarks.measure import Row, cpu, in_turns
from benchmarks.world import TPUX, world
from tpux.errors import TpuxError
from tpux.lifecycle.create import create_job
from tpux.store import Store

JOBS = 1000
PROCESSES = 16
ROUNDS = 5


def rows() -> list[Row]:
    """Whether all is there, and how many jobs a second."""
    with world() as one:
        config = one.config("command: {cmd: echo hello}\n")
        shares = [JOBS // PROCESSES + (number < JOBS % PROCESSES) for number in range(PROCESSES)]
        context = get_context("spawn")
        with context.Pool(PROCESSES) as pool:
            pool.starmap(_create, [(one.home, config, 0)] * PROCESSES)  # imports do not count
            start = time.monotonic()
            made = pool.starmap(_create, [(one.home, config, share) for share in shares], chunksize=1)
            took = time.monotonic() - start
        ids = sorted(job for of_one in made for job in of_one)
        lost = [job for job in ids if not _is_whole(one.store, job)]
        expected = [f"{number:06d}" for number in range(1, JOBS + 1)]
        right = ids == expected and one.store.ids() == expected and not lost
        found = f"{len(set(ids)):,} ids, {len(set(expected) - set(ids))} gaps, {len(lost)} lost"
    return [
        Row(f"{PROCESSES} processes create {JOBS:,} jobs together", found, "unique ids, no gap, nothing lost", right),
        Row("... which is", f"{JOBS / took:.0f} jobs/s"),
        Row("CPU of one `tpux create`", f"{_by_hand():.2f} s"),
    ]


def _create(home: Path, config: Path, count: int) -> list[str]:
    store = Store(home)
    return [create_job(store, config, (), warn=print).directory.name for _ in range(count)]


def _by_hand() -> float:
    """CPU seconds of the command as it is typed."""
    with world() as one:
        config = one.config("command: {cmd: echo hello}\n")
        (times,) = in_turns(ROUNDS, lambda: cpu([TPUX, "create", config], one.env))
        one.tpux("wait", *one.store.ids())  # the command has started a supervisor: let it come to its end
    return median(times)


def _is_whole(store: Store, job: str) -> bool:
    record = store.record(job)
    try:
        state = record.refresh()
    except TpuxError:
        return False
    files = ("config.yaml", "resolved.json", "secrets.json", "events.jsonl", "state.json")
    return state.id == job and all((record.directory / name).is_file() for name in files)
