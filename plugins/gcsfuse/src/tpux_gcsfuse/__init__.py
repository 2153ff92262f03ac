"""Module `gcsfuse`: mounts buckets of Cloud Storage on each worker."""

from __future__ import annotations

from tpux import Finding, Job, Section, Steps, TpuxError, hookimpl
from tpux_gcsfuse import scripts
from tpux_gcsfuse.section import GcsfuseSection

EXAMPLE = "for example gcsfuse: {bucket_name: my-bucket, mount_path: ~/gcs}"


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
        yield scripts.mount(mount, for_others=_is_shared(job))


def _is_shared(job: Job) -> bool:
    """Return whether other users than the one who mounts must see the files: root, as which a container runs."""
    return job.environment == "docker"


def _section(config: Section | None) -> GcsfuseSection:
    if not isinstance(config, GcsfuseSection):
        raise TpuxError("the job has no section gcsfuse", hint=EXAMPLE)
    return config
