"""Detector and solver `libtpu`: what libtpu, JAX and gRPC write when they fail, and what keeps a TPU occupied."""

from __future__ import annotations

import re
from collections.abc import Generator

from tpux import Attempt, Failure, Finding, Job, Result, Section, Step, Steps, WorkerExit, find_line, hookimpl
from tpux_libtpu.devices import device_step, findings_of
from tpux_libtpu.section import LibtpuSection
from tpux_libtpu.table import Table, table_with

_EXCEPTION = re.compile(r"(?:[A-Za-z_]\w*\.)*([A-Za-z_]\w*)(?:: |:?$)")


@hookimpl
def config_section() -> type[Section]:
    """Return the model of the section `libtpu`."""
    return LibtpuSection


@hookimpl
def classify_failure(job: Job, config: Section | None, attempt: Attempt) -> list[Failure]:
    """Return what the signatures say about each worker that failed by itself."""
    table = table_with(config.signatures if isinstance(config, LibtpuSection) else None)
    found = (_classify(ending, table, int(job.id or 0)) for ending in attempt.endings if ending.failed)
    return [failure for failure in found if failure is not None]


@hookimpl
def diagnose(job: Job, config: Section | None) -> Generator[Step, Result, list[Finding]]:
    """Find the processes, the lock file and the logs that keep the accelerator from being used."""
    section = config if isinstance(config, LibtpuSection) else LibtpuSection()
    listed = yield device_step("list", section)
    number = int(job.id)  # 0: machines without a job
    return findings_of(listed.text, section, f"tpux solve {number or job.tpu.name}", job.key if number else "")


@hookimpl
def solve(job: Job, config: Section | None) -> Steps:
    """End what earlier programs left on the accelerator, remove a stale lock file, and clear logs from a full disk."""
    section = config if isinstance(config, LibtpuSection) else LibtpuSection()
    yield device_step("repair", section, force=job.solve.force)


def _classify(ending: WorkerExit, table: Table, job: int) -> Failure | None:
    """Return what a worker's log says, None if no signature applies.

    What the program itself states as its failure comes first. If that is an exception without a signature, symptoms in
    other lines do not count, and after a mistake of the program nothing does. If it is a symptom, the program has
    continued after an earlier line about its memory.
    """
    text, stated = ending.tail(), ending.statement()
    exception = _EXCEPTION.match(stated) if "Traceback (most recent call last):" in text else None
    continued = exception is not None and any(
        one.symptom and find_line(stated, one.pattern) for one in table.signatures
    )
    for signature in sorted(table.signatures, key=lambda one: one.symptom):
        line = find_line(stated, signature.pattern)
        if not line and not (continued and signature.kind == "out-of-memory"):
            line = _before(find_line(text, signature.pattern), exception, table, symptom=signature.symptom)
        if line:
            hint = signature.hint.replace("{job}", str(job)).replace("{worker}", str(ending.worker))
            return Failure(signature.kind, ending.worker, line, hint, symptom=signature.symptom)
    return None


def _before(line: str, exception: re.Match[str] | None, table: Table, *, symptom: bool) -> str:
    """Return a matching line that is not the program's statement, if it counts; else ""."""
    if exception is not None and (symptom or exception[1] in table.program_errors):
        return ""
    return line
