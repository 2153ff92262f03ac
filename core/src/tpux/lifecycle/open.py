"""Open a job from disk, or build one from a config that is not on disk yet."""

from __future__ import annotations

import json
import logging
import re
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from secrets import token_hex
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, NamedTuple, cast

from tpux import config, env
from tpux.console import waiting_for
from tpux.errors import InvalidSectionError, TpuxError
from tpux.model.job import Job
from tpux.model.json import JsonValue
from tpux.model.machines import ProvisionRequest, Worker
from tpux.model.sections import CORE_SECTIONS
from tpux.plugin import local_files, spec
from tpux.plugin.guard import UnusablePluginError
from tpux.plugin.manager import Plugins
from tpux.plugin.selected import selected_plugins, transports
from tpux.store import Store, files
from tpux.store.record import UNANSWERED, Record
from tpux.store.state import State

if TYPE_CHECKING:
    from tpux.config.resolved import Loaded, Resolved

_log = logging.getLogger(__name__)
_NOTHING: Mapping[str, str] = MappingProxyType({})
Purpose = Literal["run", "look", "end"]
"""What a job is opened for: to run it (all must be valid), to look at it (what is no longer valid in its config is left
out), or to end it (plugins may be missing, too)."""


class JobNotOpenedError(TpuxError):
    """The job's config cannot be read, or no longer fits the installed plugins."""


class InvalidStoredConfigError(JobNotOpenedError):
    """The job's config is no longer valid for the installed tpux and its plugins."""


class DeletedSecretError(InvalidStoredConfigError):
    """A section of an ended job needs a secret whose value was deleted when the job ended.

    Args:
        job: the job's id.
        place: where the config has the first of the secrets, such as `code.repo`.
        names: the secrets that the section needs.
    """

    def __init__(self, job: str, place: str, names: Sequence[str]) -> None:
        super().__init__(
            f"the secret {names[0]} was deleted when the job ended",
            where=f"job {int(job)}: {place}",
            hint=f"set {', '.join(names)} in the environment and try again",
        )


class OpenedJob(NamedTuple):
    """A job as plugins see it, its validated config, the values of its secrets by name, and the plugins that it has.

    Attributes:
        plugins: the installed ones, and the files of its config.
        deleted: the secrets whose values were deleted when the job ended, and which no variable has; they are "".
    """

    job: Job
    config: Resolved
    secrets: Mapping[str, str]
    plugins: Plugins
    deleted: frozenset[str] = frozenset()


def open_job(
    store: Store,
    record: Record,
    plugins: Plugins,
    purpose: Purpose = "run",
    environ: Mapping[str, str] = _NOTHING,
    *,
    reads: Collection[str] | None = None,
) -> OpenedJob:
    """Read a job's config and secrets from disk.

    Args:
        store: the store that has the job.
        record: the job.
        plugins: the installed plugins, or those of this job; they validate the config's sections.
        purpose: what the job is opened for.
        environ: values for the secrets of an ended job, whose stored values have been deleted; a secret that is
            not in it is empty.
        reads: to run it, the sections that are needed, with their secrets; of all others but core's and the
            allocator's, those that are not valid are left out. None: all are needed, though not the secrets that may be
            empty.

    Raises:
        DeletedSecretError: the config needs a secret that was deleted.
        InvalidStoredConfigError: the config is no longer valid.
        TpuxError: the config cannot be read, a plugin that it needs is not installed, or a secret of a job that
            has not ended is missing.
    """
    plugins = plugins_of(record, plugins)
    if purpose == "end":
        return _open_to_end(store, record, plugins, environ)
    try:
        return _open_to_run(store, record, plugins, environ, reads)
    except InvalidStoredConfigError as error:
        if purpose == "run":
            raise
        _log.warning("job %s: continuing with what is valid of its config: %s", record.id, error.message)
        return _open_to_end(store, record, plugins, environ)


def _open_to_run(
    store: Store, record: Record, plugins: Plugins, environ: Mapping[str, str], reads: Collection[str] | None
) -> OpenedJob:
    data, state = stored_config(record), record.state
    stored: Mapping[str, JsonValue] | None = files.load(record.config_directory / "secrets.json")
    names = cast("list[str]", data.get("secrets", [])) if stored is None else []
    if stored is None and state.ended:
        stored = {name: environ.get(name, "") for name in names}
    secrets = {name: str(value) for name, value in (stored or {}).items()}
    deleted = frozenset(name for name in names if name not in environ)
    missing_secrets = sections_with(record, deleted) if deleted else {}
    if needed := [name for name in reads or () if name in missing_secrets]:
        raise _deleted_secret(record, data, needed[0], missing_secrets[needed[0]])
    required = None if reads is None else {*CORE_SECTIONS, *reads, str(data["allocator"])}
    try:
        resolved = config.from_resolved(data, plugins=plugins, secrets=secrets, required=required)
    except UnusablePluginError:
        raise
    except InvalidSectionError as error:
        if error.section in missing_secrets:
            raise _deleted_secret(record, data, error.section, missing_secrets[error.section]) from error
        raise InvalidStoredConfigError(error.message, hint=correction(state)) from error
    except TpuxError as error:
        hint = error.hint or correction(state)
        raise InvalidStoredConfigError(error.message, where=error.where, hint=hint) from error
    plugins.conceal(secrets.values())
    return OpenedJob(_build_job(store, record, data, resolved), resolved, secrets, plugins, deleted)


def _open_to_end(store: Store, record: Record, plugins: Plugins, environ: Mapping[str, str]) -> OpenedJob:
    """Read what it takes to end the program and to release the machines.

    Any plugin may be unusable, and what is no longer valid in the config is left out. Of core's own sections an ended
    job needs `job` and `tpu` only.
    """
    data = stored_config(record)
    stored: Mapping[str, JsonValue] = files.load(record.config_directory / "secrets.json") or {}
    given = {**environ, **stored}
    names = cast("list[str]", data.get("secrets", []))
    secrets = {name: str(given.get(name, "")) for name in names}
    deleted = frozenset(name for name in names if name not in given)
    required = {"job"} if record.state.ended else CORE_SECTIONS.keys() - {"tpu"}
    resolved = config.from_resolved(data, plugins=plugins, secrets=secrets, required=required, drop_invalid=True)
    plugins.conceal(secrets.values())
    return OpenedJob(_build_job(store, record, data, resolved), resolved, secrets, plugins, deleted)


def correction(state: State) -> str:
    """Return what a user types about a config that is no longer valid."""
    job = int(state.id)
    if state.ended:
        return f"correct it: tpux resume {job} --config FILE"
    return f"stop it, and start it with a corrected config: tpux stop {job}, then tpux resume {job} --config FILE"


def stored_config(record: Record, name: str = "") -> dict[str, JsonValue]:
    """Return a job's resolved config, with the copies of its files where they are now: the store may have been moved.

    Args:
        record: the job.
        name: the directory of another config that is stored with the job.

    Raises:
        TpuxError: it cannot be read.
    """
    directory = record.directory / name if name else record.config_directory
    path = directory / "resolved.json"
    if (data := files.load(path)) is None:
        raise TpuxError("the job's config cannot be read", where=str(path), hint="restore it from a backup")
    copies = cast("dict[str, str]", data.get("files", {}))
    return {**data, "files": {file: str(directory.joinpath(*Path(copy).parts[-2:])) for file, copy in copies.items()}}


def plugins_of(record: Record, plugins: Plugins, before: Plugins | None = None) -> Plugins:
    """Return the plugins as a job sees them, with the files of its config.

    Args:
        record: the job.
        plugins: the installed plugins, or those of this job.
        before: what was returned before, which is returned again if the config is the same.
    """
    directory = record.config_directory / local_files.DIRECTORY
    known = next((one for one in (plugins, before) if one and one.directory == directory), None)
    return known or plugins.with_files(local_files.stored(directory, record.state.token, int(record.id)), directory)


def sections_with(record: Record, secrets: Collection[str]) -> dict[str, list[str]]:
    """Return which of these secrets each section of a job's config has, by section; without those that have none."""
    stored = cast("dict[str, JsonValue]", stored_config(record)["config"])
    found = {name: sorted(config.secrets_in(data) & {*secrets}) for name, data in stored.items()}
    return {name: names for name, names in found.items() if names}


def _deleted_secret(
    record: Record, data: Mapping[str, JsonValue], section: str, names: Sequence[str]
) -> DeletedSecretError:
    """Return the error that a section of a stored config lacks secrets, with the first key that has the first one.

    Args:
        record: the job.
        data: its stored config.
        section: the section that lacks secrets.
        names: the secrets that it lacks.
    """
    stored = cast("dict[str, JsonValue]", data["config"])[section]
    keys = stored.items() if isinstance(stored, dict) else ()
    place = next((f"{section}.{key}" for key, value in keys if names[0] in config.secrets_in(value)), section)
    return DeletedSecretError(record.id, place, names)


def attempt_variables(state: State, worker: Worker) -> dict[str, str]:
    """Return the program's variables that describe the current attempt, for one worker."""
    return {
        env.JOB_ID: state.id,
        env.ATTEMPT: str(state.attempt),
        env.STAGE: str(state.stage),
        env.RESUME: "1" if state.run.resume else "0",
        env.WORKER: str(worker.index),
        env.OUTPUT_DIR: state.run.output_dir,
        env.PREVIOUS_OUTPUT_DIR: state.run.previous_output_dir,
    }


def _build_job(store: Store, record: Record, data: Mapping[str, JsonValue], resolved: Resolved) -> Job:
    state = record.state
    return Job(
        id=state.id,
        user=state.user,
        store_id=store.id,
        directory=record.directory,
        sections=resolved.sections,
        modules=resolved.modules,
        environment=resolved.environment,
        attempt=state.attempt,
        stage=state.stage,
        resolved={**cast("dict[str, dict[str, JsonValue]]", data.get("resolved", {})), **state.resolved},
        token=state.token,
    )


def draft_job(
    store: Store,
    loaded: Loaded,
    plugins: Plugins,
    record: Record | None = None,
    before: Job | None = None,
    *,
    holds_machines: bool = False,
    taken_over: Job | None = None,
    machines: str = "",
    sync: bool = False,
) -> Job:
    """Return the job that a config would create from this shell, or would make of an existing one.

    Args:
        store: the store that would have the job.
        loaded: the config.
        plugins: the selected ones are asked what the environment says about the job.
        record: the existing job; None for a new one.
        before: the existing job with its current config; None for a new one.
        holds_machines: the existing job holds machines, which were requested with what the environment said then: only
            plugins are asked again whose section is another one, and which neither allocate nor connect.
        taken_over: the job whose machines a new one takes over: the plugins that allocate and connect are not asked.
        machines: the name of the machines, without a job, for which the job stands.
        sync: plugins that neither allocate nor connect are asked as for a new job: they read their sources anew.

    Raises:
        TpuxError: a plugin's `resolve` failed, or the environment contradicts the config.
    """
    job = Job(
        id=record.id if record else "000000",
        user=store.user,
        store_id=store.id,
        directory=record.directory if record else store.jobs,
        token=record.state.token if record else token_hex(2),
        sections=loaded.sections,
        modules=loaded.modules,
        environment=loaded.environment,
        resolved=before.resolved if before else {},
        previous=before.resolved if before else {},
        machines=machines,
    )
    if sync:
        kept = {name: answer for name, answer in job.resolved.items() if name in _machine_plugins(job)}
        job = replace(job, resolved=kept)
    held = _held_answers(before, job) if before and holds_machines else {}
    if taken_over:
        held = {name: answer for name, answer in taken_over.resolved.items() if name in _machine_plugins(job)}
    asked = [name for name in selected_plugins(job) if name not in held]
    resolved = dict(held)
    for name in asked:  # each is told what those before it have answered, such as a transport who logs in
        with waiting_for(partial("the plugin {} to read what the config refers to".format, name)):
            answer = plugins.call_one(name, spec.resolve, job=replace(job, resolved={**job.resolved, **resolved}))
        if answer:  # converted to JSON and back: hooks are given the same data before and after the job is stored
            resolved[name] = json.loads(json.dumps(dict(answer)))
    return replace(job, resolved=resolved)


def _held_answers(before: Job, after: Job) -> dict[str, Mapping[str, JsonValue]]:
    """Return what the environment said and stays valid when the config of a job changes that holds machines."""
    return {
        name: answer
        for name, answer in after.resolved.items()
        if name in _machine_plugins(after) or before.sections.get(name) == after.sections.get(name)
    }


def _machine_plugins(job: Job) -> set[str]:
    """Return the plugins whose answers say where the machines are and how they are reached."""
    return {job.tpu.allocation_mode, *transports(job.sections)}


KEYS_OF_HELD_MACHINES = frozenset({"provision_timeout", "release", "keep_on_failure", "keep_on_stop"})
"""The keys of `tpu` that may change while the job holds machines: they say nothing about which machines these are."""


def differences_of_machines(before: Job, after: Job, allocator: str) -> list[str]:
    """Return the keys, as `section.key`, in which two jobs describe different machines.

    If the allocators differ, these are the keys that the second config sets: others differ only because each allocator
    has its own.

    Args:
        before: the job that holds machines.
        after: the job with another config, or that takes over the machines.
        allocator: the allocator of the machines.
    """

    def describe(job: Job) -> dict[str, object]:
        tpu = {f"tpu.{key}": value for key, value in job.tpu.model_dump().items() if key not in KEYS_OF_HELD_MACHINES}
        own = job.sections.get(allocator)
        section = {f"{allocator}.{key}": value for key, value in (own.model_dump() if own else {}).items()}
        return {"job.remote_user": job.job.remote_user, **tpu, **section}

    old, new = describe(before), describe(after)
    changed = {key for key in old.keys() | new.keys() if old.get(key) != new.get(key)}
    if before.tpu.allocation_mode != after.tpu.allocation_mode:
        changed &= {"job.remote_user", "tpu.allocation_mode", *(f"tpu.{key}" for key in after.tpu.model_fields_set)}
    return sorted(changed)


def with_tpu(job: Job, keys: Mapping[str, JsonValue]) -> Job:
    """Return a job whose section `tpu` has other values for some keys, those that its rule has chosen.

    They were valid when they were stored. If an upgraded plugin refuses them, the job has the config's own.
    """
    if not keys:
        return job
    try:
        tpu = config.override_tpu(job.tpu, keys)
    except TpuxError as error:
        _log.warning("job %s: what its rule has chosen is left out: %s", job.id, error)
        return job
    return replace(job, sections={**job.sections, "tpu": tpu})


def build_request(job: Job, state: State, public_keys: tuple[str, ...] = ()) -> ProvisionRequest:
    """Return what a job asks of its allocator.

    Args:
        job: the job.
        state: its state.
        public_keys: the keys to install on the machines.
    """
    job = with_tpu(job, state.tpu)
    allocator = job.tpu.allocation_mode
    labels = owner_labels(job.store_id, job.user, job.id, job.token)
    directory = job.directory / "machines"
    directory.mkdir(exist_ok=True, mode=0o700)
    made = f"{re.sub('[^a-z0-9]+', '-', job.name.lower()).strip('-') or 'job'}-{job.unique_id}"
    return ProvisionRequest(
        name=state.request_name or job.tpu_name or made,
        tpu=job.tpu,
        section=job.sections.get(allocator),
        labels=labels,
        public_keys=public_keys,
        directory=directory,
        saved_state=state.saved_state,
        attempt=state.attempt,
        resolved=job.resolved.get(allocator, {}),
        interrupted=(job.directory / UNANSWERED).exists(),
        previous_owners=state.previous_owners,
    )


def owner_labels(store_id: str, user: str, job: str, token: str) -> dict[str, str]:
    """Return the labels that name a job as the owner of machines (`ProvisionRequest.labels`).

    Args:
        store_id: the id of the store.
        user: the user of the job.
        job: the job's id.
        token: the job's token; "" if it has none.
    """
    owner = {"tpux-store": store_id, "tpux-user": user, "tpux-job": job}
    return {**owner, "tpux-token": token} if token else owner


class JobOpener:
    """Opens one job, and keeps what it has read until `reload`. Several threads may use it at once.

    A thread that was reading during a `reload` gets what was there before, which is not kept.

    Args:
        store: the store that has the job.
        record: the job.
        plugins: validate the config's sections.
    """

    def __init__(self, store: Store, record: Record, plugins: Plugins) -> None:
        self._store = store
        self._record = record
        self._plugins = plugins
        self._lock = threading.Lock()
        self._kept: OpenedJob | None = None
        self._reloads = 0

    def open(self, purpose: Purpose) -> OpenedJob:
        """Return what was read for any purpose, or read it; see `open_job`."""
        with self._lock:
            kept, reloads = self._kept, self._reloads
        if kept is not None:
            return kept
        opened = open_job(self._store, self._record, self._plugins, purpose)
        with self._lock:
            if reloads == self._reloads:
                self._kept = opened
        return opened

    def reload(self, plugins: Plugins) -> None:
        """Read the config and the secrets again when they are next used, with these plugins."""
        with self._lock:
            self._kept, self._plugins = None, plugins
            self._reloads += 1

    @property
    def is_open(self) -> bool:
        """True if the job need not be read again."""
        with self._lock:
            return self._kept is not None
