"""Solver `sample`: removes a lock file that a killed program has left on a worker."""

from __future__ import annotations

from collections.abc import Generator

from tpux import Attempt, Failure, Finding, Result, Section, Step, Steps, hookimpl, sh

LINE = "the lock is held"
"""What the program prints when it finds the lock file."""


class SampleSection(Section):
    """The lock file of a program."""

    path: str = "train.lock"
    """The file, relative to the home directory."""


@hookimpl
def config_section() -> type[Section]:
    """Return the model of the plugin's section."""
    return SampleSection


@hookimpl
def classify_failure(attempt: Attempt) -> list[Failure]:
    """Return the failures that the solver repairs: of the kind `tpu-busy`, for which core's rules call the solvers."""
    return [
        Failure("tpu-busy", ending.worker, evidence=line.strip())
        for ending in attempt.endings
        if ending.failed and (line := next((one for one in ending.tail().splitlines() if LINE in one), ""))
    ]


@hookimpl
def diagnose(config: SampleSection | None) -> Generator[Step, Result, list[Finding]]:
    """Yield steps that change nothing; return what `tpux diagnose` shows."""
    path = (config or SampleSection()).path
    found = yield sh("if [ -e {path} ]; then echo yes; fi", path=path)
    return [Finding("warning", f"{path} exists", hint="tpux solve JOB removes it")] if found.text else []


@hookimpl
def solve(failure: Failure, config: SampleSection | None) -> Steps:
    """Yield steps that repair the worker; none for a kind of failure that it does not know."""
    if failure.kind in {"tpu-busy", "unknown"}:
        path = (config or SampleSection()).path
        preview = sh("[ ! -e {path} ] || echo would remove {path}", path=path)
        yield sh("rm -f -- {path}", path=path).with_preview(preview)
