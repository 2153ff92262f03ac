"""Module `gcsfuse`: mounts buckets of Cloud Storage on each worker, and mounts them again if the server has died."""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping, Sequence

from tpux import (
    Attempt,
    Failure,
    Finding,
    Job,
    JsonValue,
    Result,
    Section,
    Step,
    Steps,
    TpuxError,
    Worker,
    WorkerExit,
    hookimpl,
)
from tpux.fields import find_line
from tpux_gcsfuse import scripts
from tpux_gcsfuse.section import GcsfuseSection, Mount

EXAMPLE = "for example gcsfuse: {bucket_name: my-bucket, mount_path: ~/gcs}"
_DEAD = "Transport endpoint is not connected"
"""What each access to a mount says whose server has died: ENOTCONN, in the words of the C library."""
_DIED = f"(?:{_DEAD}|Software caused connection abort)"
"""The same, or what an access says that was waiting for the server as that died: ECONNABORTED (`fuse_abort_conn`)."""

_FAILED = rf"{_DIED}|Input/output error|\[Errno (?:5|103|107)\]"
"""What may come from a mount, however the program calls its path: relative, by a symlink, or as in a container."""


@hookimpl
def config_section() -> type[Section]:
    """Return the model of the section `gcsfuse`."""
    return GcsfuseSection


@hookimpl
def preflight(job: Job) -> list[Finding]:
    """Report a missing section. The allocator checks the buckets."""
    if job.section("gcsfuse", GcsfuseSection) is None:
        return [Finding("error", "the module gcsfuse needs the section gcsfuse", hint=EXAMPLE)]
    return []


@hookimpl
def check(job: Job, config: Section | None) -> Steps:
    """Check that each bucket is mounted with the options of the config, by reading through the mount."""
    for mount in _section(config).mounts:
        yield scripts.check(mount, for_others=_is_shared(job))


@hookimpl
def setup(job: Job, config: Section | None) -> Steps:
    """Install gcsfuse where it is missing, and mount each bucket; a dead mount is replaced."""
    section = _section(config)
    yield scripts.install(section.lock_timeout)
    if _is_shared(job):
        yield scripts.allow_other()
    for mount in section.mounts:
        if prepare := scripts.prepare(mount, for_others=_is_shared(job)):
            yield prepare
        yield scripts.mount(mount, for_others=_is_shared(job))


@hookimpl
def collect(
    job: Job, config: Section | None, attempt: Attempt, worker: Worker
) -> Generator[Step, Result, Mapping[str, JsonValue]] | None:
    """Look which mounts do not answer where the program failed with what may come from one."""
    failed = [one for one in attempt.endings if one.worker == worker.index and one.code != 0]
    if not _used(job, config) or not any(find_line(one.tail(), _FAILED) for one in failed):
        return None
    return _look(job, config)


def _look(job: Job, config: Section | None) -> Generator[Step, Result, Mapping[str, JsonValue]]:
    found = yield from diagnose(job, config)
    return {"mounts that do not answer": "; ".join(one.message for one in found)}


@hookimpl
def classify_failure(job: Job, config: Section | None, attempt: Attempt) -> list[Failure]:
    """Return a failure of the machine for each program that failed because the server of a mount has died.

    Its line names the mount, or the mount was found dead on the worker. The check before the next attempt notices that,
    and the set-up replaces it. In a job without this module the failure is the program's, and the hint is to look.
    """
    if not (mounts := _used(job, config)):
        stated = ((ending, find_line(ending.statement(), _FAILED)) for ending in attempt.endings if ending.failed)
        hint = f"does a disk or a mount not answer? tpux diagnose {int(job.id or 0)}"
        return [Failure("program", ending.worker, line, hint) for ending, line in stated if line]
    path = "|".join(rf"(?<![\w.-]){re.escape(mount.mount_path)}(?![\w.-])" for mount in mounts)
    hint = f"the server of the mount has died; what it is now, and its repair: tpux diagnose {int(job.id or 0)}"
    named = f"(?:{path}).*{_DIED}|{_DIED}.*(?:{path})"

    def shows(ending: WorkerExit) -> str:
        seen = attempt.collected.get(ending.worker, {}).get("gcsfuse", {})
        is_dead = bool(seen.get("mounts that do not answer"))
        return find_line(ending.tail(), named) or (find_line(ending.tail(), _FAILED) if is_dead else "")

    found = ((ending, shows(ending)) for ending in attempt.endings if ending.failed)
    return [Failure("infra", ending.worker, line, hint) for ending, line in found if line]


@hookimpl
def diagnose(job: Job, config: Section | None) -> Generator[Step, Result, list[Finding]]:
    """Report each mount that does not answer."""
    found = list[Finding]()
    for mount in _used(job, config):
        examined = yield scripts.examine(mount, for_others=_is_shared(job))
        path, _, problem = examined.text.partition("\t")
        if problem:
            repair = "solve" if _DEAD in problem else "setup"
            message = f"the bucket {mount.bucket_name} at {path}: {problem}"
            found.append(Finding("error", message, where=path, hint=f"mount it again: tpux {repair} {int(job.id)}"))
    return found


@hookimpl
def solve(job: Job, config: Section | None) -> Steps:
    """Mount each bucket again whose mount is dead."""
    for mount in _used(job, config):  # what cache.prefix makes outlives the server of a mount
        yield scripts.remount(mount, for_others=_is_shared(job))


def _used(job: Job, config: Section | None) -> Sequence[Mount]:
    """Return the mounts of a job, none if it does not use the module: solvers and detectors are called for all jobs."""
    return config.mounts if isinstance(config, GcsfuseSection) and "gcsfuse" in job.modules else ()


def _is_shared(job: Job) -> bool:
    """Return whether other users than the one who mounts must see the files: root, as which a container runs."""
    return job.environment == "docker"


def _section(config: Section | None) -> GcsfuseSection:
    if not isinstance(config, GcsfuseSection):
        raise TpuxError("the job has no section gcsfuse", hint=EXAMPLE)
    return config
