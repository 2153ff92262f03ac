"""Concurrent jobs of one worker each under one supervisor: success, memory, and CPU while the programs wait."""

from __future__ import annotations

import time
from pathlib import Path

from benchmarks.measure import Row, at_most, cpu_of, memory_of, until
from benchmarks.sandbox import Gate, running, temporary_sandbox
from tpux.store.record import Record

SETTLE = 5.0
OBSERVED = 65.0
"""Seconds for which the CPU is measured while all programs wait: long enough to include all periodic work."""


def rows() -> list[Row]:
    """Measure the peak memory, the CPU while all programs wait, and how many jobs succeed."""
    return [*_rows(200, memory=200, share=10), *_rows(1000, memory=150, share=25)]


def _rows(jobs: int, *, memory: float, share: float) -> list[Row]:
    with temporary_sandbox() as sandbox:
        gate = sandbox.gate("gate")
        records = sandbox.create(sandbox.config(f"command: {{cmd: ': < {gate.path}'}}\n"), jobs)
        start = time.monotonic()
        pid = sandbox.start()
        until(lambda: all(map(running, records)), within=300, why=f"{jobs} running jobs", every=0.25)
        started, cost = time.monotonic() - start, cpu_of(pid)
        time.sleep(SETTLE)
        used = cpu_share(pid)
        peak = memory_of(pid)
        release_all(gate, records)
        ended = [record.refresh().state for record in records]
        until(lambda: not Path(f"/proc/{pid}").exists(), within=120, why="the supervisor to exit")
    succeeded = ended.count("succeeded")
    return [
        Row(
            f"{jobs:,} concurrent jobs under one supervisor", f"{succeeded} succeeded", "all succeed", succeeded == jobs
        ),
        at_most("... peak memory (RSS) of the supervisor", peak, memory, unit=" MB"),
        at_most("... CPU of the supervisor while the programs wait", 100 * used, share, unit=" %"),
        Row("... time until all were running", f"{started:.1f} s ({cost / jobs * 1000:.0f} ms of CPU per job)"),
    ]


def cpu_share(pid: int) -> float:
    """Return the share of one core that a process uses (1.0 is a whole core)."""
    before, at = cpu_of(pid), time.monotonic()
    time.sleep(OBSERVED)
    return (cpu_of(pid) - before) / (time.monotonic() - at)


def release_all(gate: Gate, records: list[Record]) -> None:
    """Open the gate until all jobs have ended."""

    def ended() -> bool:
        gate.open()
        return all(record.refresh().ended for record in records)

    until(ended, within=300, why="the jobs to end", every=0.25)
