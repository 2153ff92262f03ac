"""Module `code`: an immutable snapshot of the code, copied to each worker; the command starts in its directory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tpux import Command, Finding, Job, Peer, Result, Section, Steps, TpuxError, Worker, hookimpl, sh
from tpux_code.section import CodeSection
from tpux_code.snapshots import Snapshots
from tpux_code.worker import GONE, LARGE, check_steps, directory, install, remove_steps, send
from tpux_worker_tools import peer_copy

if TYPE_CHECKING:
    from tpux import JsonValue


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
    """Say what is copied, which symbolic links point elsewhere, and which files are pointers of Git LFS."""
    from tpux_code.source import describe, describe_paths, lfs_findings

    answer = job.resolved.get("code")
    if answer is None:
        return [Finding("error", "the module code needs the section code", hint="for example code: .")]
    findings = [Finding("note", f"code: {describe(answer)}")]
    if not answer["files"]:
        hint = "check .gitignore and code.exclude, or name another directory"
        findings.append(Finding("warning", "no file is copied to the workers", "code", hint))
    if links := describe_paths(answer, "links"):
        message = f"symbolic links whose target is not copied to the workers: {links}"
        findings.append(Finding("warning", message, "code", "copy the files there, or add the links to code.exclude"))
    return findings + lfs_findings(answer) + _large(job, int(str(answer["size"])))


def _large(job: Job, size: int) -> list[Finding]:
    """Warn about a size that takes long on a slow network: of one copy, or of one for each worker."""
    from tpux.api.text import format_size

    workers = job.tpu.count_workers()
    is_copied = peer_copy.may_log_in(job)
    total = size if is_copied else size * (workers or 1)
    if job.tpu.transport != "ssh" or total <= LARGE:
        return []
    message = f"up to {format_size(total)} pass through this machine's network"
    hint = "leave data out with code.exclude, and read it from a bucket; later, only changed files are sent"
    if is_copied:
        message += " for one worker, from which the others copy it" if workers != 1 else ""
    else:
        message += f": {format_size(size)} of code for each of {workers} workers" if workers else " for each worker"
        hint = f"{peer_copy.LOG_IN_HINT}; or {hint}"
    return [Finding("warning", message, "code", hint)]


@hookimpl
def check(job: Job) -> Steps:
    """Check that the job's directory on the worker has the snapshot."""
    yield check_steps(job, _snapshot(job))


@hookimpl
def setup(job: Job, worker: Worker, peers: Sequence[Peer]) -> Steps:
    """Send the snapshot to the worker, and put it into the job's directory."""
    snapshot = _snapshot(job)
    first = install(job, snapshot, worker.index, may_fail=True)
    installed = yield replace(first, example=Result(GONE))  # a dry run shows what a worker without any code gets
    for _ in range(2):  # twice, if other jobs on the machine have sent so much code meanwhile that it was removed
        if installed.code == GONE:
            yield from send(job, Snapshots(), snapshot, worker.index, peers, installed)
            installed = yield install(job, snapshot, worker.index, may_fail=True)
    if installed.code == GONE:
        yield sh("echo {problem}; exit 1", problem="other jobs on the machine keep replacing the code that is sent")
    if not installed.ok:
        yield install(job, snapshot, worker.index)


@hookimpl
def clean_up(job: Job, released: bool) -> Steps:
    """Remove the code from machines that stay and that the job gives up; what the program has written is kept."""
    if released:
        yield remove_steps(job)


@hookimpl
def prepare_command(job: Job, command: Command) -> Command:
    """Let the command start in the job's directory."""
    return replace(command, cwd=directory(job))


@hookimpl
def stored_files(resolved: Mapping[str, JsonValue]) -> list[Path]:
    """Return the files of a job's snapshot."""
    return Snapshots().stored_files(str(resolved["snapshot"]))


def _snapshot(job: Job) -> str:
    """Return the id of the job's snapshot.

    Raises:
        TpuxError: the job has none.
    """
    answer = job.resolved.get("code")
    if answer is None:
        raise TpuxError("the job has no snapshot of the code", hint="add the section code: .")
    return str(answer["snapshot"])
