"""Module `code`: an immutable snapshot of the code, copied to each worker; the command starts in its directory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tpux import Command, Finding, Job, Section, Steps, TpuxError, hookimpl
from tpux_code import worker
from tpux_code.section import CodeSection
from tpux_code.snapshots import Snapshots

if TYPE_CHECKING:
    from tpux import JsonValue

LARGE = 50_000_000
"""Bytes to all workers together from which on a preflight warns."""


@hookimpl
def config_section() -> type[Section]:
    """Return the model of the section `code`."""
    return CodeSection


@hookimpl
def resolve(job: Job) -> Mapping[str, JsonValue] | None:
    """Take a snapshot of the code, or keep that of the job if its section has not changed."""
    from tpux_code.source import digest_of, take_snapshot

    section, previous = job.section("code", CodeSection), job.resolved.get("code")
    if section is None:
        return None
    if previous and previous["section"] == digest_of(section):
        return previous
    return take_snapshot(section, previous)


@hookimpl
def preflight(job: Job) -> list[Finding]:
    """Say what is copied, and which symbolic links point elsewhere."""
    from tpux_code.source import describe

    answer = job.resolved.get("code")
    if answer is None:
        return [Finding("error", "the module code needs the section code", hint="for example code: .")]
    findings = [Finding("note", f"code: {describe(answer)}")]
    if not answer["files"]:
        hint = "check .gitignore and code.exclude, or name another directory"
        findings.append(Finding("warning", "no file is copied to the workers", "code", hint))
    if isinstance(links := answer.get("links"), list):
        more = f" and {answer['further_links']} more" if "further_links" in answer else ""
        message = f"symbolic links whose target is not copied to the workers: {', '.join(map(str, links))}{more}"
        findings.append(Finding("warning", message, "code", "copy the files there, or add the links to code.exclude"))
    return findings + _large(job, int(str(answer["size"])))


def _large(job: Job, size: int) -> list[Finding]:
    """Warn about a size that takes long on a slow network, since each worker gets the code from this machine."""
    from tpux.api import format_size

    workers = job.tpu.count_workers()
    if job.tpu.transport != "ssh" or size * (workers or 1) <= LARGE:
        return []
    message = f"up to {format_size(size * (workers or 1))} pass through this machine's network"
    message += f": {format_size(size)} of code for each of {workers} workers" if workers else " for each worker"
    hint = "leave data out with code.exclude, and read it from a bucket; later, only changed files are sent"
    return [Finding("warning", message, "code", hint)]


@hookimpl
def check(job: Job) -> Steps:
    """Check that the job's directory on the worker has the snapshot."""
    yield worker.check_steps(job, _snapshot(job))


@hookimpl
def setup(job: Job) -> Steps:
    """Send the snapshot to the worker, and put it into the job's directory."""
    snapshot = _snapshot(job)
    yield from worker.send(job, Snapshots(), snapshot)
    yield worker.install(job, snapshot)


@hookimpl
def prepare_command(job: Job, command: Command) -> Command:
    """Let the command start in the job's directory."""
    return replace(command, cwd=worker.directory(job))


@hookimpl
def remove_unused(used: Sequence[Mapping[str, JsonValue]]) -> None:
    """Remove the snapshots that no job uses."""
    Snapshots().remove_unused({str(answer["snapshot"]) for answer in used})


@hookimpl
def disk_usage(resolved: Mapping[str, JsonValue]) -> int | None:
    """Return the size of a job's snapshot."""
    return sum(snapshot.size for snapshot in Snapshots().find([str(resolved["snapshot"])]))


def _snapshot(job: Job) -> str:
    """Return the id of the job's snapshot.

    Raises:
        TpuxError: the job has none.
    """
    answer = job.resolved.get("code")
    if answer is None:
        raise TpuxError("the job has no snapshot of the code", hint="add the section code: .")
    return str(answer["snapshot"])
