"""Change the config of a job that is resumed or rerun: the shell stores the new one, the supervisor adopts it."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from tpux import config
from tpux.clock import SystemClock
from tpux.config.arguments import joined
from tpux.config.document import Argument
from tpux.errors import ConfigError, TpuxError, UsageError
from tpux.lifecycle.decision import release_time
from tpux.lifecycle.new_config import config_files, preflight, report_arguments, report_findings
from tpux.lifecycle.open import (
    InvalidStoredConfigError,
    differences_of_machines,
    draft_job,
    open_job,
    stored_config,
)
from tpux.lifecycle.sources import ChangedSources, compare_sources, sources_of
from tpux.lifecycle.turn import Next, Turn
from tpux.lifecycle.waits_for_jobs import require_other_jobs
from tpux.model import events
from tpux.model.failures import Failure
from tpux.plugin import local_files
from tpux.plugin.manager import Plugins
from tpux.store import Store, files
from tpux.store.hooks import HookObserver

if TYPE_CHECKING:
    from tpux.lifecycle.open import OpenedJob
    from tpux.model.job import Job
    from tpux.model.json import JsonValue
    from tpux.store.record import Record

    _Sections = Mapping[str, JsonValue]


def change_config(
    store: Store,
    record: Record,
    path: Path | None,
    overrides: Sequence[str],
    *,
    warn: Callable[[str], None],
    sync: bool = False,
) -> tuple[str, ChangedSources]:
    """Store another config with a job. It takes effect with the request that names it, once the job has ended.

    Args:
        store: the store that has the job.
        record: the job.
        path: the new config; None takes the job's own, as it was when it was given, with its arguments.
        overrides: `section.key=value` arguments, which override the config's values.
        warn: receives warnings.
        sync: read the files that the config names, and what plugins have stored, such as the code, from their sources.

    Returns:
        The directory of the config, below the job's, and what is still stored as it was although its source has
        changed.

    Raises:
        ConfigError: the config is invalid; the error lists every problem.
        TpuxError: the config describes other machines than those that the job still holds, or a preflight found a
            reason why the job would fail.
    """
    plugins, state = Plugins().observed(HookObserver(store, SystemClock(), record.directory)), record.refresh()
    current = record.config_directory
    data = stored_config(record)
    environ = {**_stored_secrets(current), **os.environ}
    if path is None:
        loaded = load_stored(record, overrides, plugins, environ, sync=sync)
    else:
        loaded = config.load(path, overrides, plugins=plugins, environ=environ)
    for warning in loaded.warnings:
        warn(f"warning: {warning}")
    report_arguments(loaded, overrides, warn=warn)
    former = _open_former(store, record, plugins, environ, required=state.requested)
    job = replace(former.job, resolved={**former.job.resolved, **record.updates()}) if former else None
    plugins = loaded.plugins
    draft = draft_job(store, loaded, plugins, record, job, holds_machines=state.requested, sync=sync)
    if former and job and state.requested:
        _require_same_machines(job, draft, former.config.allocator)
    for change in _resolution_changes(job, draft) if job else []:
        warn(f"note: {change} (from the environment of this shell)")
    require_other_jobs(store, draft)
    report_findings(preflight(draft, plugins), warn=warn)
    changed = _changed_keys(cast("_Sections", data["config"]), loaded, draft)
    name = _write(record, loaded, draft, changed)
    return name, compare_sources(draft, stored_config(record, name), record.directory / name)


def load_stored(
    record: Record,
    overrides: Sequence[str],
    plugins: Plugins,
    environ: Mapping[str, str],
    *,
    sync: bool = False,
) -> config.Loaded:
    """Load the job's own config, as it was when it was given, with its arguments and further ones.

    Args:
        record: the job.
        overrides: further `section.key=value` arguments, after those that the job was given.
        plugins: the installed plugins.
        environ: the variables that `${env:NAME}` reads.
        sync: read the files that it names where they were first read, in place of the job's copies.

    Raises:
        ConfigError: it is invalid.
    """
    data = stored_config(record)
    sources = sources_of(data)
    copies = {Path(file): Path(copy) for file, copy in cast("dict[str, str]", data["files"]).items()}
    text = (record.config_directory / "config.yaml").read_text()
    settings = tuple((path, content) for path, content in cast("list[tuple[str, str]]", data.get("settings", [])))
    used = sources if sync else copies
    own = {file: copy for file, copy in copies.items() if copy.parent.name == local_files.DIRECTORY.name}
    # One that is gone has become a package, say: the job keeps its copy.
    plugin_files = {file: used[file] if used[file].exists() else copy for file, copy in own.items()}
    stored = config.Stored(text, used, sources, Path(str(data["home"])), settings, plugin_files)
    former = cast("list[str]", data["overrides"])
    given = joined(former, overrides)
    loaded = config.load(Path(str(data["path"])), given, plugins=plugins, environ=environ, stored=stored)
    said = {Argument(word, "").location(0) for word in {*former} - {*overrides}}  # when they were typed
    loaded.warnings = [warning for warning in loaded.warnings if warning.where not in said]
    return loaded


def _open_former(
    store: Store, record: Record, plugins: Plugins, environ: Mapping[str, str], *, required: bool
) -> OpenedJob | None:
    """Open the job with its former config, or with what is valid of it.

    Args:
        store: the store that has the job.
        record: the job.
        plugins: the installed plugins.
        environ: the variables from which deleted secrets are taken.
        required: raise what keeps it from being opened: the job holds machines, which must be compared.

    Returns:
        None if it cannot be opened, unless it is `required`.
    """
    try:
        return open_job(store, record, plugins, "look", environ)
    except TpuxError:
        if required:
            raise
        return None  # it may be what is to be mended


def refuse_config(turn: Turn, error: InvalidStoredConfigError) -> Next:
    """Fail a job that starts with a config that is no longer valid, with the positions of what is wrong.

    Args:
        turn: the step of a job whose attempt has not begun.
        error: says what is not valid, without positions.
    """
    evidence = error.message
    try:
        load_stored(turn.record, (), turn.plugins, _stored_secrets(turn.record.config_directory))
    except ConfigError as located:
        evidence = "; ".join(f"{problem.where}: {problem.message}" for problem in located.problems)
    hint = f"correct it: tpux resume {turn.number} --config FILE"
    turn.write(events.Failed(failure=Failure("config", evidence=evidence, hint=hint, at=turn.clock.now())))
    return Next(events.StateChanged(to="failed", why=evidence, release_at=release_time(turn, "failed")))


def _stored_secrets(directory: Path) -> Mapping[str, str]:
    return {name: str(value) for name, value in (files.load(directory / "secrets.json") or {}).items()}


def _require_same_machines(before: Job, after: Job, allocator: str) -> None:
    """Refuse a config that describes other machines than those that the job holds."""
    if changed := differences_of_machines(before, after, allocator):
        job = int(before.id)
        raise UsageError(
            f"job {job} still holds its machines, and {', '.join(changed)} would describe other ones",
            hint=f"release them first: tpux stop {job} --release",
        )


def _resolution_changes(before: Job, after: Job) -> list[str]:
    """Return what the environment says now instead of what it said before, as `plugin.key: before -> after`."""
    return [
        f"{word}.{key}: {before.resolved[word].get(key)} -> {value}"
        for word, values in after.resolved.items()
        for key, value in values.items()
        if key in (shown if isinstance(shown := values.get("shown"), list) else values)
        # A plugin whose section was changed says itself what follows from that.
        if word in before.resolved and before.sections.get(word) == after.sections.get(word)
        if before.resolved[word].get(key) != value
    ]


def _changed_keys(before: _Sections, loaded: config.Loaded, job: Job) -> tuple[str, ...]:
    """Return the keys, as `section.key`, that another config adds, removes or gives another value."""

    def by_key(sections: _Sections) -> dict[str, JsonValue]:
        keys: dict[str, JsonValue] = {}
        for name, section in sections.items():
            if isinstance(section, dict):
                keys |= {f"{name}.{key}": value for key, value in section.items()}
            elif section is not None:  # one value stands for the whole section, as in `code: .`
                keys[name] = section
        return keys

    old = by_key(before)
    new = by_key(cast("_Sections", loaded.resolved(id=job.id, user=job.user, token=job.token)["config"]))
    return tuple(sorted(key for key in old.keys() | new.keys() if old.get(key) != new.get(key)))


def discard_config(record: Record, name: str) -> None:
    """Remove a stored config that no request names, or that came too late: it may have secrets.

    Args:
        record: the job.
        name: the config's directory, as `change_config` returned it.
    """
    shutil.rmtree(record.directory / name, ignore_errors=True)


def _write(record: Record, loaded: config.Loaded, job: Job, changed: tuple[str, ...]) -> str:
    """Write the config's files into a new directory, which appears complete or not at all; return its name.

    Args:
        record: the job.
        loaded: the new config.
        job: the job with that config.
        changed: the keys that differ from the former config, as `section.key`.
    """
    name = f"configs/{uuid.uuid4().hex[:8]}"
    target = record.directory / name
    draft = target.with_name(f".new-{target.name}")
    content, _ = config_files(loaded, replace(job, directory=record.directory), target, changed)
    try:
        for file, (data, mode) in content.items():
            (draft / file).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            files.write_atomic(draft / file, data, mode=mode)
        files.rename(draft, target)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    return name


def apply_config(turn: Turn, name: str) -> None:
    """Make a stored config the job's config. A crash at any point leaves the request, which applies it again.

    Args:
        turn: the step of a job that has ended.
        name: the config's directory, as `change_config` returned it.

    Raises:
        TpuxError: the stored config was damaged.
    """
    directory = turn.record.directory / name
    facts = (files.load(directory / "resolved.json") or {}).get("facts")
    try:
        changed = events.from_json({**(facts if isinstance(facts, dict) else {}), "config": name})
    except ValueError as error:
        raise TpuxError("the changed config cannot be read", where=str(directory / "resolved.json")) from error
    if turn.state.config != name:
        turn.write(changed)
    job = turn.record.directory
    for path in [job / "secrets.json", *job.glob("configs/*/secrets.json")]:
        if path.parent != directory:  # of a config that is no longer the job's
            path.unlink(missing_ok=True)
