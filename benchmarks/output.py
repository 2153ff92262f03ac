"""100 MB from each of four workers: the same bytes in the job's logs, against writing them to files."""

from __future__ import annotations

import hashlib
import subprocess
import time
from pathlib import Path
from statistics import median

from benchmarks.measure import Row, at_most, in_turns, ratio, until
from benchmarks.world import World, world
from tpux.store.record import Record

PROGRAM = "seq 100000001 110000000"
"""Ten million lines of ten bytes. (Not `cat`: a file system that shares blocks copies nothing for it.)"""
WORKERS = 4
ROUNDS = 3


def rows() -> list[Row]:
    """From the attempt's start to the end of its last worker, its log complete, against `cat` to four files."""
    with world() as one:
        config = one.config(f"tpu: {{accelerator: v4-32}}\ncommand: {{cmd: {PROGRAM}}}\n")
        sums: dict[str, set[str]] = {"file": set(), "log": set()}
        floor, jobs = in_turns(ROUNDS, lambda: _to_files(one, sums["file"]), lambda: _as_job(one, config, sums["log"]))
    same = sums["log"] == sums["file"] and len(sums["log"]) == 1
    found = "the same bytes" if same else f"{len(sums['log'] | sums['file'])} different contents"
    note = f"{median(jobs):.2f} s / {median(floor):.2f} s"
    return [
        Row(f"100 MB from each of {WORKERS} workers", found, "the same bytes (sha256)", same),
        at_most("... time / writing the same to files", ratio(jobs, floor), 3, note=note),
    ]


def _to_files(one: World, sums: set[str]) -> float:
    targets = [one.directory / f"file-{worker}" for worker in range(WORKERS)]
    start = time.monotonic()
    processes = [subprocess.Popen(["sh", "-c", f"{PROGRAM} >{target}"]) for target in targets]
    codes = [process.wait() for process in processes]
    took = time.monotonic() - start
    if any(codes):
        raise RuntimeError("the program failed")
    sums |= {_sum(target) for target in targets}
    for target in targets:
        target.unlink()
    return took


def _as_job(one: World, config: Path, sums: set[str]) -> float:
    (record,) = one.create(config, 1)
    one.start()
    until(record.finished, within=60, why="the job's end")
    sums |= {_sum(record.logs / "attempt-1" / f"command_worker_{worker}.log") for worker in range(WORKERS)}
    took = _took(record)
    one.tpux("delete", "-y", record.directory.name)
    return took


def _took(record: Record) -> float:
    at = [(event.type, event.at) for event, _ in record.events()]
    return max(when for kind, when in at if kind == "worker-ended") - dict(at)["attempt-started"]


def _sum(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()
