"""200 jobs of one worker at once under one supervisor: all succeed, and they cost little while they only sleep."""

from __future__ import annotations

import time
from pathlib import Path

from benchmarks.measure import Row, at_most, cpu_of, memory_of, until
from benchmarks.world import Gate, running, world
from tpux.store.record import Record

JOBS = 200
SETTLE = 5.0
WATCHED = 65.0
"""Seconds that the supervisor is watched while all programs sleep: long enough for all that it does now and then."""


def rows() -> list[Row]:
    """Memory (the most there ever was), the share of a core while all sleep, how many succeeded."""
    with world() as one:
        gate = one.gate("gate")
        records = one.create(one.config(f"command: {{cmd: ': < {gate.path}'}}\n"), JOBS)
        begun = time.monotonic()
        pid = one.start()
        until(lambda: all(map(running, records)), within=120, why="200 running jobs", every=0.25)
        started, cost = time.monotonic() - begun, cpu_of(pid)
        time.sleep(SETTLE)
        share = share_of_a_core(pid)
        peak = memory_of(pid)
        let_go(gate, records)
        ended = [record.refresh().state for record in records]
        until(lambda: not Path(f"/proc/{pid}").exists(), within=30, why="the supervisor's own end")
    succeeded = ended.count("succeeded")
    return [
        Row(f"{JOBS} jobs at once under one supervisor", f"{succeeded} succeeded", "all succeed", succeeded == JOBS),
        at_most("... its memory (RSS), at the most", peak, 200, unit=" MB"),
        at_most("... its share of a core while they only sleep", 100 * share, 10, unit=" %"),
        Row("... until all ran", f"{started:.1f} s ({cost / JOBS * 1000:.0f} ms of CPU a job)"),
    ]


def share_of_a_core(pid: int) -> float:
    """What a process uses of one core."""
    before, at = cpu_of(pid), time.monotonic()
    time.sleep(WATCHED)
    return (cpu_of(pid) - before) / (time.monotonic() - at)


def let_go(gate: Gate, records: list[Record]) -> None:
    """Open the gate until all have ended."""

    def ended() -> bool:
        gate.open()
        return all(record.refresh().ended for record in records)

    until(ended, within=90, why="the jobs' ends", every=0.25)
