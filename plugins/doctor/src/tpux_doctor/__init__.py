"""What is wrong with a job's workers: `tpux diagnose`, `solve` and `check`, and a monitor of memory and disks."""

from __future__ import annotations

from collections.abc import Generator

from tpux import Attempt, Finding, Result, Step, Worker, hookimpl
from tpux_doctor import local
from tpux_doctor.facts import facts_step, parse_facts
from tpux_doctor.program import classify_failure, collect

__all__ = ["classify_failure", "collect", "monitor"]


@hookimpl
def monitor(attempt: Attempt, worker: Worker) -> Generator[Step, Result, list[Finding]]:
    """Report what the worker has left of memory, and of the disks of its home, `/tmp` and the output directory."""
    output = (attempt.output_dir,) if attempt.output_dir.startswith("/") else ()
    key = local.file_systems(worker, output)
    facts = None if key is None else local.recent(key)
    if facts is None:
        result = yield facts_step((".", "/tmp"), local_paths=output)  # noqa: S108  (examined, not written to)
        facts = parse_facts(result.output)
        if key is not None:
            local.keep(key, facts)
    return facts.resources()
