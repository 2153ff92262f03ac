"""Options and helpers that commands share: job selection, summaries, output."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from tpux.api.hints import current_hint as current_hint
from tpux.api.options import JobArg as JobArg
from tpux.api.options import JobsArg as JobsArg
from tpux.api.options import Json as Json
from tpux.api.options import MaybeJobArg as MaybeJobArg
from tpux.api.options import OnlyModules as OnlyModules
from tpux.api.options import OnlyWorkers as OnlyWorkers
from tpux.api.options import select_modules as select_modules
from tpux.api.options import select_workers as select_workers
from tpux.api.options import worker_numbers as worker_numbers
from tpux.api.times import iso as iso
from tpux.api.times import local_time as local_time
from tpux.cli import completion
from tpux.cli.group import Group as Group
from tpux.console import STATE_COLOURS as STATE_COLOURS
from tpux.console import confirm as confirm
from tpux.console import echo as echo
from tpux.console import emit as emit
from tpux.console import new_app as new_app
from tpux.console import say as say
from tpux.durations import format_age, format_duration
from tpux.errors import TpuxError, UsageError

if TYPE_CHECKING:
    from tpux.lifecycle.sources import ChangedSources
    from tpux.model.failures import FailureKind
    from tpux.model.json import JsonValue
    from tpux.store import Store
    from tpux.store.record import Record
    from tpux.store.state import State


def _known_state(state: str | None) -> str | None:
    if state is not None:
        from tpux.plugin.catalog import did_you_mean
        from tpux.store.state import TRANSITIONS

        if state not in TRANSITIONS:
            hint = did_you_mean(state, TRANSITIONS) or f"the states are {', '.join(TRANSITIONS)}"
            raise UsageError(f"unknown state {state!r}", hint=hint)
    return state


Yes = Annotated[bool, typer.Option("-y", "--yes", help="Do not ask for confirmation.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what would be done and do nothing.")]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=VALUE]... [-- WORD...]",
        help="Arguments of the program, such as lr=0.1, and overrides of the config, such as tpu.accelerator=v4-16.",
    ),
]
OfState = Annotated[
    str | None,
    typer.Option(
        "--state",
        help="Only jobs in this state, such as failed.",
        autocompletion=completion.states,
        callback=_known_state,
    ),
]
OfName = Annotated[str | None, typer.Option("--name", help="Only jobs with a matching name, such as 'lr-*'.")]
OfTag = Annotated[
    list[str] | None, typer.Option("--tag", help="Only jobs with this tag; of several, only jobs with all of them.")
]


FAILURE_COLOUR = "red"


def short_id(job: str) -> str:
    """Return a job id without its leading zeros, for messages."""
    return job.lstrip("0") or job


def short_ids(records: Sequence[Record]) -> str:
    """Return the ids of several jobs as a comma-separated list."""
    return ", ".join(short_id(record.id) for record in records)


def describe_jobs(records: Sequence[Record], *, releases: bool = False) -> str:
    """Return a line for each job: its name, state, attempt and age, and what its deletion does."""

    def lost(record: Record) -> str:
        files = record.directory / "collected"
        return "; ".join(filter(None, [describe_release(record), f"deletes {files}" if files.is_dir() else ""]))

    return "\n".join(_describe_job(record, lost(record) if releases else "") for record in records)


def _describe_job(record: Record, lost: str) -> str:
    state = record.refresh()
    attempt = f", attempt {state.attempt}" if state.attempt else ""
    age = format_duration(max(0.0, time.time() - state.created_at))
    more = f"; {lost}" if lost else ""
    return f"  job {short_id(state.id)} ({state.name}): {state.state}{attempt}, created {age} ago{more}"


def describe_release(record: Record, verbs: tuple[str, str] = ("releases", "keeps")) -> str:
    """Return which machines a job releases or keeps when it is deleted, "" if it has none.

    Args:
        record: the job.
        verbs: the words for a release, and for machines that `tpu.release` keeps.
    """
    state, machines = record.state, record.state.machines
    if not state.requested:
        return ""
    rule = record.stored_section("tpu").get("release", "created")
    kept = rule == "never" or (machines is not None and machines.borrowed and rule != "always")
    name = machines.name if machines else f"what was requested as {state.request_name or state.name}"
    accelerator = (machines and machines.accelerator) or state.accelerator or ""
    where = f" in {state.zone}" if state.zone else ""
    return " ".join(filter(None, (verbs[kept], accelerator, f"{name}{where}")))


def summary(state: State) -> dict[str, JsonValue]:
    """Return the fields of a job that lists show."""
    return {
        "id": state.id,
        "user": state.user,
        "name": state.name,
        "state": state.state,
        "accelerator": state.accelerator,
        "zone": state.zone,
        "workers": state.workers,
        "attempt": state.attempt,
        "stage": state.stage,
        "created_at": iso(state.created_at),
        "since": iso(state.since),
        "held_until": held_until(state),
        "why": state.why or (state.failure.evidence or state.failure.kind if state.failure else ""),
    }


def step_duration(state: State) -> str:
    """Return for how long a set-up has been at the step that `why` names, to be appended to it; "" in other states."""
    shown = state.state == "setting-up" and state.why
    return f", for {format_duration(time.time() - state.updated_at)}" if shown else ""


def describe_progress(progress: JsonValue) -> str:
    """Return the field `progress` of a job for people, "" if nothing is known."""
    from tpux.model.progress import Progress

    if not isinstance(progress, dict):
        return ""
    return str(Progress(**{name: value for name, value in progress.items() if name != "at"}))  # type: ignore[arg-type]


MANUAL_RELEASE = "released by hand"
"""Until when machines are held whose release is not scheduled."""


def held_until(state: State) -> str | None:
    """Return until when an ended job holds machines that cost money, in ISO 8601 or `MANUAL_RELEASE`; None if none."""
    if not state.ended or state.machines is None or not state.machines.costs:
        return None
    return MANUAL_RELEASE if state.release_at is None else iso(state.release_at)


def describe_held(state: State) -> str:
    """Return how many workers that cost money a job holds, and, after its end, how much longer: `4`, `4, 29m`."""
    if state.allocation is None or not state.allocation.get("costs"):
        return ""
    workers = state.allocation.get("workers")
    count = str(len(workers) if isinstance(workers, list) else state.workers)
    if not state.ended:
        return count
    left = None if state.release_at is None else state.release_at - time.time()
    return f"{count}, {MANUAL_RELEASE if left is None else 'releasing' if left <= 0 else format_age(left)}"


def held_notice(state: State) -> str | None:
    """Return what an ended job holds, until when, and the commands for it; None if it holds nothing that costs."""
    now, machines = time.time(), state.machines
    at = state.release_at
    if held_until(state) is None or machines is None or (at is not None and at <= now):
        return None
    job, where = short_id(state.id), f" in {machines.zone}" if machines.zone else ""
    until = f"they are {MANUAL_RELEASE}"
    if at is not None:
        until = f"{datetime.fromtimestamp(at):%H:%M} (for {format_duration(at - now)})"
    login = f"log in: tpux ssh {job}; " if machines.transport == "ssh" else ""
    again = f"run it again: tpux rerun {job}" if state.state == "succeeded" else f"continue: tpux resume {job}"
    commands = f"{login}{again}; run another config on them: tpux run CONFIG --on {job}; "
    commands += f"release them now: tpux stop {job} --release"
    return f"job {job} holds its machines ({machines.name}{where}) until {until}; {commands}"


def report_end(store: Store, record: Record, state: State) -> None:
    """Say what there is to do about the failure of a job that has ended, and what it holds.

    Args:
        store: the store of the job.
        record: the job.
        state: its state at the end.
    """
    if state.failure is not None and state.failure.hint:
        say(f"hint: {current_hint(state.failure.hint, state)}")
    if changed := describe_changed(changed_sources(store, record), state):
        say(f"hint: {changed}")
    elif again := describe_retry(record):
        say(f"hint: {again}")
    if notice := held_notice(state):
        say(notice)


_SAME = "the same would fail again; with a change{held}: tpux "
_RETRIES: Mapping[FailureKind, str] = {
    **dict.fromkeys(("program", "out-of-memory", "incomplete"), _SAME + "resume {job} {change}"),
    "config": _SAME + "resume {job} --config CONFIG",
    "setup": "with a change{held}: tpux resume {job} --config CONFIG",
    "quota": "the same would fail again; once the quota is raised: tpux resume {job}",
    "plugin": "the same would fail again; once the plugin is repaired: tpux resume {job}{sync}",
    "stalled": "the same may stall again: tpux resume {job} continues from the last checkpoint",
    "auth": "once the credentials are valid: tpux resume {job}",
    "tpu-busy": "once nothing else uses the TPU: tpux resume {job}",
    "unreachable": "once they can be reached, on new machines: tpux resume {job}",
    **dict.fromkeys(("preempted", "maintenance", "host-lost"), "on new machines: tpux resume {job}"),
}
"""What tries a job again after a kind of failure."""


def describe_retry(record: Record) -> str:
    """Return what tries a failed job again, and whether the same would fail again; "" if it has not failed."""
    state = record.state
    if state.state != "failed" or state.failure is None:
        return ""
    retry = _RETRIES.get(state.failure.kind, "the program need not change: tpux resume {job}")
    change = "--sync" if record.stored_section("code") else "KEY=VALUE"
    held = ", on the machines that it holds" if state.allocation else ""
    sync = " --sync" if (record.config_directory / "plugins").is_dir() else ""  # it has copies of plugins
    return retry.format(job=short_id(state.id), change=change, held=held, sync=sync)


def changed_sources(store: Store, record: Record) -> ChangedSources | None:
    """Return what has changed at its source since it was stored with a job, after a failure that this may have mended.

    Args:
        store: the store of the job.
        record: the job.
    """
    failure = record.state.failure
    if failure is None or failure.kind not in {"program", "setup"} or not record.directory.is_dir():
        return None
    from tpux.lifecycle.sources import find_changed

    return find_changed(store, record)


def describe_changed(found: ChangedSources | None, state: State) -> str:
    """Return what has changed at its source, and the command that takes it, in one line; "" if nothing has."""
    job = short_id(state.id)
    stop = "" if state.ended else f"tpux stop {job} && "
    return found.describe(f"{stop}tpux resume {job}") if found and found.names else ""


def find_job(store: Store, job: str | None) -> Record:
    """Return the job of this id or name; of several of this name the active one, else the newest, with a note.

    Args:
        store: the store.
        job: its id or name, or `-` for the one that was created last; None for the only active one.

    Raises:
        UsageError: there is no such job, or not only one that is active.
    """
    if job is not None:
        return store.find(job, note=say)
    found = [(record, state) for record, state in readable(store, ids=active_ids(store)) if not state.ended]
    if len(found) == 1:
        return found[0][0]
    candidates = ", ".join(f"{short_id(state.id)} ({state.name}, {state.state})" for _, state in found)
    hint = f"name one: {candidates}" if found else "name one, or - for the one that you created last"
    raise UsageError(f"{len(found) or 'no'} jobs are active", hint=hint)


def active_ids(store: Store) -> list[str]:
    """Return the ids of the user's jobs that may be active, oldest first, without reading all."""
    opened = store.open_ids()
    return [job for job in store.ids() if job in opened]


def select_jobs(
    store: Store,
    ids: Sequence[str],
    *,
    state: str | None = None,
    name: str | None = None,
    tags: Sequence[str] | None = None,
) -> list[Record]:
    """Return the jobs that a command acts on.

    Args:
        store: the store.
        ids: ids or names of jobs.
        state: instead of ids, the state that the jobs must have.
        name: instead of ids, a pattern that the jobs' names must match.
        tags: instead of ids, the tags that the jobs must have.

    Raises:
        UsageError: no selection was given, two kinds were, or a named job does not exist.
    """
    if ids and (state or name or tags):
        raise UsageError("give job ids, or --state, --name and --tag, not both")
    if ids:
        found = [store.find(job, note=say) for job in ids]
        return list({record.directory: record for record in found}.values())
    if not state and not name and not tags:
        raise UsageError("no job selected", hint="give ids, --state, --name or --tag; `tpux list` shows your jobs")
    found = [record for record, job in readable(store) if matches(job, state, name)]
    if not (records := [record for record in found if has_tags(record, tags)]):
        say("no matching jobs")
    return records


def readable(store: Store, user: str | None = None, ids: Iterable[str] | None = None) -> Iterator[tuple[Record, State]]:
    """Yield (record, state) for each of the user's jobs; warn about and skip jobs whose files are corrupt.

    Args:
        store: the store.
        user: whose jobs; None for the own ones.
        ids: the ids of the jobs; None for all.
    """
    for job in store.ids(user) if ids is None else ids:
        record = store.record(job, user)
        try:
            yield record, record.refresh()
        except TpuxError as error:
            say(f"warning: job {short_id(record.id)} cannot be read: {error}")


def matches(job: State, state: str | None, name: str | None) -> bool:
    """Return True if the job is in this state and its name matches this pattern; None matches everything."""
    if state and job.state != state:
        return False
    if not name:
        return True
    from fnmatch import fnmatchcase

    return fnmatchcase(job.name, name)


def has_tags(record: Record, tags: Sequence[str] | None) -> bool:
    """Return True if the job has all of these tags."""
    from tpux.store.tags import load

    return not tags or {*tags} <= {*load(record.directory)}
