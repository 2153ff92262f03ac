"""Detector and solver `libtpu`: what libtpu, JAX and gRPC write when they fail, and what keeps a TPU occupied."""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping
from dataclasses import replace

from tpux import Attempt, Failure, Finding, Job, JsonValue, Result, Section, Step, Steps, Worker, WorkerExit, hookimpl
from tpux.fields import find_line
from tpux_libtpu.devices import device_step, findings_of, what_holds
from tpux_libtpu.section import LibtpuSection
from tpux_libtpu.table import Signature, Table, table_with

HEAD = 64 * 1024
"""Bytes at the beginning of the output in which a program says on which devices it runs."""
REPLACEMENTS = 2
"""How often in a row a job may replace its machines because their TPUs cannot be opened: new ones cost money."""
_EXCEPTION = re.compile(r"(?:[A-Za-z_]\w*\.)*([A-Za-z_]\w*)(?:: |:?$)")


@hookimpl
def config_section() -> type[Section]:
    """Return the model of the section `libtpu`."""
    return LibtpuSection


@hookimpl
def collect(
    job: Job, config: Section | None, attempt: Attempt, worker: Worker
) -> Generator[Step, Result, Mapping[str, JsonValue]] | None:
    """Look what holds the TPU of a worker whose program could not open it."""
    section = config if isinstance(config, LibtpuSection) else LibtpuSection()
    table = table_with(section.signatures)
    for ending in attempt.endings:
        if ending.worker == worker.index and ending.code != 0:
            found = _find(ending, table, peers=True)
            return _look(job, section) if found and found[0].not_opened else None
    return None


def _look(job: Job, section: LibtpuSection) -> Generator[Step, Result, Mapping[str, JsonValue]]:
    listed = yield device_step("list", section)
    tpu, because = what_holds(listed.text, section, f"tpux solve {int(job.id or 0)}", job.key)
    return {"tpu": tpu, "because": because}


@hookimpl
def classify_failure(job: Job, config: Section | None, attempt: Attempt) -> list[Failure]:
    """Return what the signatures say about each worker that failed by itself."""
    table = table_with(config.signatures if isinstance(config, LibtpuSection) else None)
    peers = len(attempt.endings) > 1
    failed = (ending for ending in attempt.endings if ending.failed)
    found = (_classify(ending, table, int(job.id or 0), attempt, peers=peers) for ending in failed)
    return [failure for failure in found if failure is not None]


@hookimpl
def monitor(
    job: Job, config: Section | None, attempt: Attempt, worker: Worker
) -> Generator[Step, Result, list[Finding]]:
    """Warn of a program that runs on without its TPU, as its output says; no step runs on the worker."""
    section, found = config if isinstance(config, LibtpuSection) else LibtpuSection(), list[Finding]()
    for ending in attempt.endings if job.tpu.accelerator else ():
        if ending.worker == worker.index:
            text = _head(ending) + ending.tail()
            signatures = (one for one in table_with(section.signatures).signatures if one.while_running)
            lines = ((one, find_line(text, one.pattern)) for one in signatures)
            found += [Finding("warning", line, "TPU", one.hint) for one, line in lines if line][:1]
    yield from ()
    return found


def _head(ending: WorkerExit) -> str:
    """Return the beginning of the output; "" if there is none yet."""
    try:
        with ending.log.open("rb") as log:
            return log.read(HEAD).decode(errors="replace").replace("\r", "\n")
    except FileNotFoundError:
        return ""


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


def _classify(ending: WorkerExit, table: Table, job: int, attempt: Attempt, *, peers: bool) -> Failure | None:
    """Return what a worker's log says, None if no signature applies.

    Where the TPU could not be opened, what was found on the worker decides. A TPU that nothing holds is bad, and so is
    one that is busy again although the solvers have freed it. What could not be seen is no reason to replace it.

    Args:
        ending: the end of the program on a worker.
        table: the signatures.
        job: the number of the job, for hints.
        attempt: the attempt, with what was found on the workers.
        peers: whether the program runs on several workers: some signatures count only there.
    """
    if (found := _find(ending, table, peers=peers)) is None:
        return None
    signature, line = found
    hint = signature.hint.replace("{job}", str(job)).replace("{worker}", str(ending.worker))
    failure = Failure(signature.kind, ending.worker, line, hint, symptom=signature.symptom)
    seen = attempt.collected.get(ending.worker, {}).get("libtpu", {})
    if not signature.not_opened or not seen:
        return failure
    failure = replace(failure, hint=f"{seen['because']}; {hint}")
    if seen["tpu"] == "free" or (seen["tpu"] == "occupied" and attempt.repaired):
        return replace(failure, kind="host-lost", replacements=REPLACEMENTS)
    return failure


def _find(ending: WorkerExit, table: Table, *, peers: bool) -> tuple[Signature, str] | None:
    """Return the signature that applies to a worker's log, and its line; None if none does.

    What the program itself states as its failure comes first; after a signal that is its fatal error, or the exception
    before that. If no signature matches that, symptoms in other lines do not count, and after a mistake of the program
    nothing does. If its exception is a symptom, the program has continued after an earlier line about its memory.

    Args:
        ending: the end of the program on a worker.
        table: the signatures.
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
            return signature, line
    return None


def _counts(signature: Signature, stated: str, ending: WorkerExit, table: Table) -> bool:
    """Return whether a matching line counts that is not what the program states as its failure.

    Args:
        signature: the one that matches.
        stated: what the program states as its failure.
        ending: the end of the program on the worker.
        table: all signatures.
    """
    if signature.stated:
        return False
    if signature.context is not None and not find_line(stated, signature.context):
        return False
    if (name := _EXCEPTION.match(ending.exception())) is not None:
        return not signature.symptom and name[1] not in table.program_errors
    return not signature.symptom or not (fatal := ending.fatal_error()) or table.explains(fatal)
