"""What the creation of a job and a change of its config share: the preflight, its report, and the config's files."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path, PurePosixPath

from tpux import config
from tpux.config.arguments import describe_arguments
from tpux.console import waiting_for
from tpux.errors import ConfigError, HostUnreachableError, Problem, TpuxError, plain_reason
from tpux.model.events import ConfigChanged
from tpux.model.failures import Finding
from tpux.model.job import Job, is_url
from tpux.plugin import local_files, spec
from tpux.plugin.catalog import ALWAYS_USED
from tpux.plugin.manager import Plugins
from tpux.plugin.selected import durable_paths, selected_plugins
from tpux.store import Files

ASKED_OF_ALL = (
    *(spec.classify_failure, spec.solve, spec.diagnose, spec.monitor, spec.progress),
    *(spec.find_checkpoint, spec.on_event),
)
"""The hooks for which a plugin that is installed needs not be selected."""
INSTALL = "pip install tpux-plugin-storage"
_ALMOST_URL = re.compile(r"(gs|gcs|s3|az|abfs|file|https?):(?!//)", re.IGNORECASE)


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
    own, copies = loaded.plugin_files, dict[Path, Path]()
    for number, file in enumerate(loaded.files):
        copies[file] = local_files.DIRECTORY / file.name if file in own else Path("files", f"{number}-{file.name}")
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
    checked = local_files.contents(loaded.plugins.installed.values())
    stored = {**resolved, "resolved": job.resolved, "facts": facts.to_json()}
    content = {
        "config.yaml": (loaded.text.encode(), 0o600),
        "resolved.json": (json.dumps(stored, indent=1).encode(), 0o600),
        "secrets.json": (json.dumps(dict(loaded.secrets)).encode(), 0o600),
    }
    for file, source in loaded.files.items():
        content[str(copies[file])] = (checked[source] if source in checked else source.read_bytes(), 0o600)
    return content, facts


def preflight(job: Job, plugins: Plugins) -> list[Finding]:
    """Return what the plugins that the job uses find before anything is created, and whether there is a checkpoint.

    Raises:
        TpuxError: a plugin's hook failed.
    """

    @cache
    def ask(name: str) -> Sequence[Finding]:
        return _ask(name, job, plugins)

    names = [*selected_plugins(job), *sorted(ALWAYS_USED & job.sections.keys() - {*job.disabled_plugins})]
    found = [finding for name in names for finding in ask(name)]
    found = [*_check_output_url(job, plugins, ask), *found, *_check_output_directory(job)]
    return [*dict.fromkeys([*found, *_broken_plugins(job, plugins)])]


def _ask(name: str, job: Job, plugins: Plugins) -> Sequence[Finding]:
    """Return what a plugin's preflight finds; that nothing is checked, if it got no connection or no answer."""
    try:
        with waiting_for(lambda: f"the plugin {name} to check the config"):
            return plugins.call_one(name, spec.preflight, job=job) or []
    except TpuxError as error:
        cause = error.__cause__ or error
        offline = isinstance(cause, OSError) and cause.filename is None  # of a socket, or of requests
        if not offline and not isinstance(cause, HostUnreachableError):
            raise
        return [Finding("warning", f"not checked: {plain_reason(cause)}", f"plugin {name}")]


def _broken_plugins(job: Job, plugins: Plugins) -> list[Finding]:
    """Return a warning for each plugin that is asked for every job and cannot be used: the job does without it."""
    broken = plugins.broken(*ASKED_OF_ALL, without=job.disabled_plugins)
    return [Finding("warning", f"{error.message}; jobs do without it", hint=error.hint) for error in broken.values()]


def _check_output_url(job: Job, plugins: Plugins, ask: Callable[[str], Sequence[Finding]]) -> Sequence[Finding]:
    """Return why the job's `output_dir` cannot be used, if it is a URL, as the plugins find that search there."""
    url, where = job.job.output_dir or "", "job.output_dir"
    if _ALMOST_URL.match(written := url.removeprefix("~/")):
        hint = "the URL of a directory in a bucket is gs://BUCKET/DIRECTORY"
        return [Finding("error", f"{written!r} would be a directory of that name on the workers", where, hint)]
    if not is_url(url):
        return []
    names = [name for name in plugins.implementing(spec.find_checkpoint) if name not in job.disabled_plugins]
    if not names:
        message = f"no installed plugin looks for checkpoints in {url.partition('://')[0]}://"
        return [Finding("error", message, where, INSTALL)]
    judges = set(names) & set(plugins.implementing(spec.preflight))
    found = [ask(name) for name in names if name in judges]
    # One that can search there is enough.
    return min(found, key=lambda findings: sum(finding.level == "error" for finding in findings), default=[])


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


def report_arguments(loaded: config.Loaded, overrides: Sequence[str], *, warn: Callable[[str], None]) -> None:
    """Say which arguments the program gets, if some of them were typed."""
    if any(word in loaded.taken for word in overrides):
        section = loaded.resolved(id="", user="")["config"]
        command = section.get("command") if isinstance(section, dict) else None
        warn(f"note: arguments of the program: {describe_arguments(command if isinstance(command, dict) else {})}")


def report_findings(findings: Sequence[Finding], *, warn: Callable[[str], None]) -> None:
    """Report the warnings and notes among the findings, and raise the errors.

    Raises:
        ConfigError: there are errors; it lists all of them.
    """
    for finding in findings:
        if finding.level in {"warning", "note"}:
            warn(f"{finding.level}: {describe_finding(finding)}")
    if errors := [finding for finding in findings if finding.level == "error"]:
        raise ConfigError([Problem(finding.where, finding.message, finding.hint) for finding in errors])


def describe_finding(finding: Finding) -> str:
    """Return a finding as one message."""
    return str(TpuxError(finding.message, where=finding.where, hint=finding.hint))
