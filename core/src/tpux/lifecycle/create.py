"""Create a job on disk from a config, after the plugins' preflight."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from tpux import config, env
from tpux.clock import Clock, SystemClock
from tpux.errors import Exit, TpuxError
from tpux.lifecycle.checkpoint import check_output_dir
from tpux.lifecycle.open import draft_job
from tpux.lifecycle.transfer import open_giver, require_same_machines
from tpux.model.events import ConfigChanged, Created
from tpux.model.failures import Finding
from tpux.model.job import Job
from tpux.plugin import spec
from tpux.plugin.manager import Plugins
from tpux.plugin.selected import durable_paths, selected_plugins
from tpux.store import Files, Store
from tpux.store.hooks import TRACE, HookObserver

if TYPE_CHECKING:
    from tpux.store.record import Record

ASKED_OF_ALL = (spec.classify_failure, spec.solve, spec.diagnose, spec.monitor, spec.on_event)
"""The hooks for which a plugin that is installed needs not be selected."""


def create_job(
    store: Store,
    path: Path,
    overrides: Sequence[str],
    *,
    warn: Callable[[str], None],
    clock: Clock | None = None,
    plugins: Plugins | None = None,
    on: Record | None = None,
) -> Record:
    """Create a job from a config; no machines are requested yet.

    Args:
        store: the store for the job.
        path: the config.
        overrides: `key=value` arguments.
        warn: receives warnings and notes.
        clock: the current time.
        plugins: by default those that are installed.
        on: the ended job whose machines the new one takes over.

    Raises:
        ConfigError: the config is invalid; the error lists every problem.
        UsageError: `on` has no machines that could be taken over, or the config describes other ones.
        TpuxError: the environment contradicts the config, or a preflight found a reason why the job would fail.
        OSError: the store cannot be written.
    """
    clock = clock or SystemClock()
    observer = HookObserver(store, clock)
    plugins = (Plugins() if plugins is None else plugins).observed(observer)
    loaded = config.load(path, overrides, plugins=plugins)
    for warning in loaded.warnings:
        warn(f"warning: {warning}")
    giver = open_giver(store, on, plugins) if on else None
    draft = draft_job(store, loaded, plugins, taken_over=giver.job if giver else None)
    if giver:
        require_same_machines(giver, draft)
    report_findings(preflight(draft, plugins), warn=warn)

    def build(job: str) -> tuple[Files, Created]:
        content, facts = config_files(loaded, replace(draft, id=job), store.jobs / store.user / job)
        created = Created(
            id=job,
            user=store.user,
            name=facts.name,
            accelerator=facts.accelerator,
            zone=facts.zone,
            allocator=facts.allocator,
            workers=facts.workers,
            plugins=tuple(plugins.names()),
            token=draft.token,
            takes_over=on.id if on else "",
        )
        trace = {TRACE: (b"".join(observer.lines), 0o600)} if env.trace_hooks() else {}
        return {**content, **trace}, created

    return store.create(build, at=clock.now())


def config_files(
    loaded: config.Loaded, job: Job, directory: Path, changed: tuple[str, ...] = ()
) -> tuple[Files, ConfigChanged]:
    """Return how a config is stored.

    Args:
        loaded: the config.
        job: the job that has it.
        directory: where the files will be.
        changed: the keys in which it differs from the config that it replaces.

    Returns:
        The files by name, and what `tpux list` shows of the config, as an event without the config's directory.
    """
    copies = {file: Path("files") / f"{number}-{file.name}" for number, file in enumerate(loaded.files)}
    resolved = loaded.resolved(
        id=job.id, user=job.user, token=job.token, files={file: directory / copy for file, copy in copies.items()}
    )
    tpu = job.tpu
    facts = ConfigChanged(
        config="",
        name=job.name,
        accelerator=tpu.accelerator if not isinstance(tpu.accelerator, list) else tpu.accelerator[0],
        zone=tpu.first_zone(),
        allocator=loaded.allocator,
        workers=loaded.workers or 0,
        changed=changed,
    )
    stored = {**resolved, "resolved": job.resolved, "facts": facts.to_json()}
    content = {
        "config.yaml": (loaded.text.encode(), 0o600),
        "resolved.json": (json.dumps(stored, indent=1).encode(), 0o600),
        "secrets.json": (json.dumps(dict(loaded.secrets)).encode(), 0o600),
        **{str(copies[file]): (source.read_bytes(), 0o600) for file, source in loaded.files.items()},
    }
    return content, facts


def preflight(job: Job, plugins: Plugins) -> list[Finding]:
    """Return what the selected plugins find before anything is created, and whether a resume has something to resume.

    Raises:
        TpuxError: a plugin's hook failed.
    """
    answers = [plugins.call_one(name, spec.preflight, job=job) for name in selected_plugins(job)]
    found = [finding for findings in answers for finding in findings or []]
    return [*check_output_dir(job, plugins), *found, *_check_output_directory(job), *_broken_plugins(job, plugins)]


def _broken_plugins(job: Job, plugins: Plugins) -> list[Finding]:
    """Return a warning for each plugin that is asked for every job and cannot be used: the job does without it."""
    broken = plugins.broken(*ASKED_OF_ALL, without=job.disabled_plugins)
    return [Finding("warning", f"{error.message}; jobs do without it", hint=error.hint) for error in broken.values()]


def _check_output_directory(job: Job) -> list[Finding]:
    """Return a warning if a preemption deletes the output that the next attempt would resume from."""
    if job.tpu.pricing == "ondemand" or job.job.rule == "pass":
        return []
    output, paths = job.job.output_dir, durable_paths(job)
    if paths if output is None else "://" in output or any(_is_below(output, path) for path in paths):
        return []
    lost = "job.output_dir is not set" if output is None else f"{output} is not known to outlive the machines"
    message = f"after a preemption the job starts from scratch: {lost}, and a worker's own disk is lost"
    hint = "set job.output_dir to a bucket (gs://BUCKET/DIRECTORY) or to a directory where one is mounted"
    return [Finding("warning", message, where="job.output_dir", hint=hint)]


def _is_below(path: str, directory: str) -> bool:
    return PurePosixPath(os.path.normpath(path)).is_relative_to(os.path.normpath(directory))


def report_findings(findings: Sequence[Finding], *, warn: Callable[[str], None]) -> None:
    """Report the warnings and notes among the findings, and raise the errors.

    Raises:
        TpuxError: there are errors; it lists all of them.
    """
    for finding in findings:
        if finding.level in {"warning", "note"}:
            warn(f"{finding.level}: {describe_finding(finding)}")
    if errors := [describe_finding(finding) for finding in findings if finding.level == "error"]:
        raise TpuxError("\n".join(errors), exit_code=Exit.USAGE)


def describe_finding(finding: Finding) -> str:
    """Return a finding as one message."""
    return str(TpuxError(finding.message, where=finding.where, hint=finding.hint))
