"""Detector `libtpu`: what libtpu, JAX and gRPC write near the end of the log of a worker that failed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator

from tpux import Attempt, Failure, Job, LocalFile, Section, WorkerExit, find_line, hookimpl
from tpux_libtpu.table import Table, table_with

_EXCEPTION = re.compile(r"(?:[A-Za-z_]\w*\.)*([A-Za-z_]\w*)(?:: |:?$)")


def _valid_table(path: Path) -> Path:
    if path.is_file():  # a file that is missing is reported where that is an error
        table_with(path)
    return path


class LibtpuSection(Section):
    """More signatures of failures."""

    signatures: Annotated[LocalFile, AfterValidator(_valid_table)] | None = None
    """A YAML file of signatures, in the format of tpux' own table; they are tried before these."""


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


def _classify(ending: WorkerExit, table: Table, job: int) -> Failure | None:
    """Return what a worker's log says, None if no signature applies.

    What the program itself states as its failure comes first. If that is an exception without a signature, symptoms in
    other lines do not count, and after a mistake of the program nothing does.
    """
    text, stated = ending.tail(), ending.statement()
    exception = _EXCEPTION.match(stated) if "Traceback (most recent call last):" in text else None
    for signature in sorted(table.signatures, key=lambda one: one.symptom):
        line = find_line(stated, signature.pattern) or _before(
            find_line(text, signature.pattern), exception, table, symptom=signature.symptom
        )
        if line:
            hint = signature.hint.replace("{job}", str(job)).replace("{worker}", str(ending.worker))
            return Failure(signature.kind, ending.worker, line, hint, symptom=signature.symptom)
    return None


def _before(line: str, exception: re.Match[str] | None, table: Table, *, symptom: bool) -> str:
    """Return a matching line that is not the program's statement, if it counts; else ""."""
    if exception is not None and (symptom or exception[1] in table.program_errors):
        return ""
    return line
