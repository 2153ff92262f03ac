"""Request that jobs start again: shared by `tpux resume`, `tpux rerun` and `tpux restart`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tpux.api.watch import watch
from tpux.cli import completion
from tpux.cli.common import say, select_jobs, short_id
from tpux.cli.program_words import SEPARATOR
from tpux.errors import TpuxError, UsageError

if TYPE_CHECKING:
    from tpux.lifecycle.sources import ChangedSources
    from tpux.model.json import JsonValue
    from tpux.store import Store
    from tpux.store.record import Record
    from tpux.store.state import State

ACK_TIMEOUT = 10.0
"""Seconds to wait until the supervisor acknowledges a request."""
PENDING_TIMEOUT = 5.0
"""Seconds to wait until it has read the job's config: a plugin's import may take long."""


RestartArgs = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[JOB]... [KEY=VALUE]... [-- WORD...]",
        help="The jobs' ids or names; for one job, changes of its arguments (lr=0.01) and its config (job.name=x).",
        autocompletion=completion.jobs,
    ),
]
ChangedConfig = Annotated[
    Path | None, typer.Option("--config", help="The config that replaces the job's.", show_default=False)
]
Sync = Annotated[
    bool, typer.Option("--sync", help="Take the code, and the files that the config names, as they are now.")
]


def request_restart(
    action: Literal["resume", "rerun"],
    words: Sequence[str],
    state: str | None = None,
    name: str | None = None,
    config: Path | None = None,
    *,
    skip_setup: bool = False,
    sync: bool = False,
    configs: Mapping[str, str] | None = None,
    tags: Sequence[str] | None = None,
) -> None:
    """Request that jobs start again, and make sure that a supervisor is running.

    Args:
        action: how they start.
        words: ids or names of jobs, and overrides of the config of the one job.
        state: instead of ids, the state that the jobs must have.
        name: instead of ids, a pattern that the jobs' names must match.
        config: the config that replaces the one job's.
        skip_setup: on the machines of the last attempt, set up only what was updated since.
        sync: take the code, and the files that the configs name, from their sources.
        configs: the directories of changed configs that are stored already, by the job's id, whatever has changed at
            its source having been reported.
        tags: instead of ids, the tags that the jobs must have.

    Raises:
        UsageError: a job is still running, or has nothing to resume.
        TpuxError: the changed config is invalid, or describes other machines than those that the job holds; or
            the supervisor did not acknowledge a request in time.
    """
    from tpux.store import Store, hooks

    store = Store()
    words = words[1:] if words[:1] == [SEPARATOR] else words
    before = words[: words.index(SEPARATOR)] if SEPARATOR in words else words
    ids, overrides = [word for word in before if "=" not in word], [word for word in before if "=" in word]
    if overrides and overrides[0] == words[0] and _is_job(store, words[0]):  # whose config is lr=0.1.yaml, say
        ids.insert(0, overrides.pop(0))
    overrides += words[len(before) :]
    changed = config is not None or bool(overrides)
    records = select_jobs(store, ids, state=state, name=name, tags=tags)
    if changed and len(records) != 1:
        raise UsageError(
            f"a changed config is for one job, not for {len(records)}", hint=f"tpux {action} 12 --config C"
        )
    for record in records:
        _require_restartable(record, action)
    for record in records:
        hooks.start_trace(record.directory)
    unstarted = [record for record in records if _withdraws_rerun(record.refresh(), action)]
    if changed or sync:
        _require_ended(records)
        configs = change_configs(store, records, config, overrides, sync=sync, action=action)
    _restore_secrets([record for record in records if record.id not in (configs or {})])
    if configs is None:
        report_changed_sources(store, records, action)
    _request_start(store, records, action, configs or {}, skip_setup=skip_setup)
    for record in records:
        if record in unstarted and not record.state.from_scratch:
            shown = short_id(record.id)
            say(f"job {shown}: its rerun had not begun, and is withdrawn; from scratch: tpux rerun {shown}")


def _request_start(
    store: Store,
    records: Sequence[Record],
    action: Literal["resume", "rerun"],
    configs: Mapping[str, str],
    *,
    skip_setup: bool,
) -> None:
    """Write the requests, and say when each takes effect.

    Args:
        store: the store of the jobs.
        records: the jobs.
        action: how they start.
        configs: the directories of changed configs, by the job's id; removed where they have no effect.
        skip_setup: set up only what was updated since the last attempt.
    """
    from tpux.store import requests
    from tpux.supervisor import client

    options = {record: start_options(record, configs, skip_setup=skip_setup) for record in records}
    requested: dict[Record, int] = {}
    try:
        for record in records:
            requested[record] = requests.write(record, action, **options[record])
    except (OSError, TpuxError):
        discard_configs([record for record in records if record not in requested], configs)
        raise
    if records:
        client.notify(store)
    for record, number in requested.items():
        report_start(store, record, action, number, options[record])


def start_options(record: Record, configs: Mapping[str, str], *, skip_setup: bool) -> dict[str, JsonValue]:
    """Return the options of the request that starts a job again.

    Args:
        record: the job.
        configs: the directories of changed configs, by the job's id.
        skip_setup: set up only what was updated since the last attempt.
    """
    skip: dict[str, JsonValue] = {"skip_setup": True} if skip_setup else {}
    return {**skip, "config": configs[record.id]} if record.id in configs else skip


def report_changed_sources(store: Store, records: Sequence[Record], action: str) -> None:
    """Say what these jobs are going to run as it was stored with them, although its source has changed.

    Args:
        store: the store of the jobs.
        records: the jobs.
        action: the command that starts them.
    """
    from tpux.lifecycle.sources import find_changed

    for record in records:
        _say_changed(record, find_changed(store, record), action)


def _say_changed(record: Record, found: ChangedSources, action: str) -> None:
    shown = short_id(record.id)
    command = f"tpux {action} {shown}" if action == "restart" else f"tpux stop {shown} && tpux {action} {shown}"
    if found.names:
        say(f"warning: job {shown}: {found.describe(command)}")


def _withdraws_rerun(state: State, action: Literal["resume", "rerun"]) -> bool:
    """Return whether a job was to start from scratch, has not, and will not after this request."""
    return state.from_scratch and bool(state.outputs) and not state.scratch_after(action)


def _is_job(store: Store, word: str) -> bool:
    try:
        store.find(word, note=lambda _: None)
    except UsageError:
        return False
    return True


def report_start(store: Store, record: Record, action: str, number: int, options: Mapping[str, JsonValue]) -> None:
    """Wait until a request takes effect, and say when the job starts.

    Args:
        store: the store of the job.
        record: the job.
        action: how it starts.
        number: the number of the request.
        options: the options of the request.

    Raises:
        UsageError: the job was started meanwhile, with its former config; or its config is no longer valid.
        TpuxError: no supervisor acknowledged the request.
    """
    shown, when = short_id(record.id), _wait_for_start(store, record, number)
    if when == "now" and record.state.last_request.get("action") != action:
        discard_configs([record], {record.id: str(options.get("config", ""))})
        say(f"job {shown}: a later stop has replaced the {action}")
        return
    if when == "now" and "config" in options and record.state.config != options["config"]:
        discard_configs([record], {record.id: str(options["config"])})
        raise UsageError(f"job {shown} was started meanwhile: its config is not changed", hint=f"tpux stop {shown}")
    if when == "now":
        _require_valid_config(store, record)
    say(f"job {shown}: {action} requested, starts {when}; follow it: tpux logs -f {shown}")


def _require_valid_config(store: Store, record: Record) -> None:
    """Wait until the job has left the state in which its config is read.

    Raises:
        UsageError: it has failed, because that is no longer valid for the installed tpux.
    """
    job = next((job for job in watch(store, record, timeout=PENDING_TIMEOUT) if job.state != "pending"), record.state)
    if job.state == "failed" and job.failure is not None and job.failure.kind == "config":
        raise UsageError(f"job {short_id(job.id)} cannot start: {job.failure.evidence}", hint=job.failure.hint)


def _require_restartable(record: Record, action: str) -> None:
    from tpux.store import requests

    job, shown = record.refresh(), short_id(record.id)
    requests.require_not_deleted(record)
    if job.state == "succeeded" and action == "resume":
        raise UsageError(f"job {shown} has succeeded", hint=f"start it from scratch: tpux rerun {shown}")
    stops = any(request.action == "stop" for request in requests.pending(record))
    if not job.ended and job.state not in {"stopping", "recovering"} and not stops:
        raise UsageError(f"job {shown} is already {job.state}", hint=f"stop it first: tpux stop {shown}")


def _restore_secrets(records: Sequence[Record]) -> None:
    from tpux.store.secrets import restore_secrets

    for record in records:
        if record.state.ended:
            restore_secrets(record)


def _require_ended(records: Sequence[Record]) -> None:
    """Refuse another config for a job that has not ended."""
    for record in records:
        if not record.state.ended:
            shown = short_id(record.id)
            hint = f"wait until it has stopped (tpux wait {shown}), then try again"
            raise UsageError(f"the config of job {shown} cannot change while it is {record.state.state}", hint=hint)


def change_configs(
    store: Store,
    records: Sequence[Record],
    config: Path | None = None,
    overrides: Sequence[str] = (),
    *,
    sync: bool,
    action: str,
) -> dict[str, str]:
    """Store changed configs with jobs, all or none, and say what they have that has changed at its source.

    Args:
        store: the store of the jobs.
        records: the jobs.
        config: the config that replaces theirs.
        overrides: `section.key=value` arguments.
        sync: take the code, and the files that the configs name, from their sources.
        action: the command that starts the jobs again.

    Returns:
        The directory of each, by the job's id.
    """
    from tpux.lifecycle.change_config import change_config

    configs: dict[str, str] = {}
    try:
        for record in records:
            warn = partial(_warn_of, record) if len(records) > 1 else say
            configs[record.id], found = change_config(store, record, config, overrides, warn=warn, sync=sync)
            _say_changed(record, found, action)
    except BaseException:
        discard_configs(records, configs)
        raise
    return configs


def _warn_of(record: Record, text: str) -> None:
    """Print a warning or a note with the job that it is about."""
    level, _, message = text.partition(": ")
    say(f"{level}: job {short_id(record.id)}: {message}")


def discard_configs(records: Sequence[Record], configs: Mapping[str, str]) -> None:
    """Remove the changed configs of jobs that have not taken them, and will not.

    Args:
        records: the jobs.
        configs: the directory of each config, by the job's id.
    """
    from tpux.lifecycle.change_config import discard_config
    from tpux.store import requests

    for record in records:
        name = configs.get(record.id)
        stored = any(request.config == name for request in requests.pending(record))  # whose writing raised after all
        if name and not stored and record.refresh().config != name:
            discard_config(record, name)


def _wait_for_start(store: Store, record: Record, request: int) -> str:
    """Block until the supervisor acknowledges the request, so that the next command sees the new state.

    Returns:
        "now" if it was acknowledged, otherwise what the start waits for: the request stays pending.

    Raises:
        TpuxError: no supervisor acknowledged it within `ACK_TIMEOUT`.
    """
    for job in watch(store, record, timeout=ACK_TIMEOUT, warn=say, notice=say):
        if job.last_request_number >= request:
            return "now"
        if job.release_promised:
            return "once its machines are released"
        if job.state == "stopping":
            return "once it has stopped"
    if record.state.cleaning_up:  # for up to half a minute, if a worker does not answer
        return "once its workers are cleaned up"
    hint = "the request is stored and applies once a supervisor runs: tpux supervisor status"
    message = f"no supervisor acknowledged the request within {ACK_TIMEOUT:.0f} s"
    raise TpuxError(message, where=f"job {short_id(record.id)}", hint=hint)
