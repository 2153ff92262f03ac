"""Detector and solver `libtpu`: what libtpu, JAX and gRPC write when they fail, and what keeps a TPU occupied."""

from __future__ import annotations

import re
from collections.abc import Generator

from tpux import Attempt, Failure, Finding, Job, Result, Section, Step, Steps, WorkerExit, hookimpl
from tpux.fields import find_line
from tpux_libtpu.devices import device_step, findings_of
from tpux_libtpu.section import LibtpuSection
from tpux_libtpu.table import Signature, Table, table_with

_EXCEPTION = re.compile(r"(?:[A-Za-z_]\w*\.)*([A-Za-z_]\w*)(?:: |:?$)")


@hookimpl
def config_section() -> type[Section]:
    """Return the model of the section `libtpu`."""
    return LibtpuSection


@hookimpl
def classify_failure(job: Job, config: Section | None, attempt: Attempt) -> list[Failure]:
    """Return what the signatures say about each worker that failed by itself."""
    table = table_with(config.signatures if isinstance(config, LibtpuSection) else None)
    peers = len(attempt.endings) > 1
    found = (_classify(ending, table, int(job.id or 0), peers=peers) for ending in attempt.endings if ending.failed)
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


def _classify(ending: WorkerExit, table: Table, job: int, *, peers: bool) -> Failure | None:
    """Return what a worker's log says, None if no signature applies.

    What the program itself states as its failure comes first; after a signal that is its fatal error, or the exception
    before that. If no signature matches that, symptoms in other lines do not count, and after a mistake of the program
    nothing does. If its exception is a symptom, the program has continued after an earlier line about its memory.

    Args:
        ending: the end of the program on a worker.
        table: the signatures.
        job: the number of the job, for hints.
        peers: whether the program runs on several workers: some signatures count only there.
    """
    text, exception = ending.tail(), ending.exception()
    stated = f"{ending.statement()}\n{exception}"
    continued = any(one.symptom and find_line(exception, one.pattern) for one in table.signatures)
    applicable = (one for one in table.signatures if peers or not one.peers)
    for signature in sorted(applicable, key=lambda one: one.symptom):
        line = find_line(stated, signature.pattern)
        if not line and not (continued and signature.kind == "out-of-memory"):
            line = find_line(text, signature.pattern)
            if line and not _counts(signature, stated, ending, table):
                line = ""
        if line:
            hint = signature.hint.replace("{job}", str(job)).replace("{worker}", str(ending.worker))
            return Failure(signature.kind, ending.worker, line, hint, symptom=signature.symptom)
    return None


def _counts(signature: Signature, stated: str, ending: WorkerExit, table: Table) -> bool:
    """Return whether a matching line counts that is not what the program states as its failure.

    Args:
        signature: the one that matches.
        stated: what the program states as its failure.
        ending: the end of the program on the worker.
        table: all signatures.
    """
    if signature.context is not None and not find_line(stated, signature.context):
        return False
    if (name := _EXCEPTION.match(ending.exception())) is not None:
        return not signature.symptom and name[1] not in table.program_errors
    return not signature.symptom or not (fatal := ending.fatal_error()) or table.explains(fatal)
