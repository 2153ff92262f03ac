"""What the commands share: options, output, confirmation, and which jobs are meant."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Annotated

import typer

from tpux.cli import completion
from tpux.console import confirm as confirm
from tpux.console import emit as emit
from tpux.console import new_app as new_app
from tpux.console import say as say
from tpux.errors import TpuxError, UsageError

if TYPE_CHECKING:
    from tpux.plugin.job import Job
    from tpux.plugin.machines import JsonValue
    from tpux.store import Store
    from tpux.store.record import Record
    from tpux.store.state import State


def _known_state(word: str | None) -> str | None:
    if word is not None:
        from tpux.plugin.known import did_you_mean
        from tpux.store.state import TRANSITIONS

        if word not in TRANSITIONS:
            hint = did_you_mean(word, TRANSITIONS) or f"a job is {', '.join(TRANSITIONS)}"
            raise UsageError(f"there is no state {word!r}", hint=hint)
    return word


Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Yes = Annotated[bool, typer.Option("-y", "--yes", help="Do not ask.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")]
JobArg = Annotated[str, typer.Argument(metavar="JOB", help="The job's id or name.", autocompletion=completion.jobs)]
JobsArg = Annotated[
    list[str] | None,
    typer.Argument(metavar="[JOB]...", help="The jobs' ids or names.", autocompletion=completion.jobs),
]
OfState = Annotated[
    str | None,
    typer.Option(
        "--state",
        help="Those in this state, such as failed.",
        autocompletion=completion.states,
        callback=_known_state,
    ),
]
OfName = Annotated[str | None, typer.Option("--name", help="Those whose name matches this pattern, such as 'lr-*'.")]
OnlyModules = Annotated[list[str] | None, typer.Option("--only", metavar="MODULE", help="This module alone.")]
OnlyWorkers = Annotated[list[int] | None, typer.Option("--worker", metavar="N", min=0, help="This worker alone.")]


def iso(at: float) -> str:
    """A time as ISO 8601, in UTC."""
    return datetime.fromtimestamp(at, timezone.utc).isoformat(timespec="milliseconds")


def summary(state: State) -> dict[str, JsonValue]:
    """A job as lists show it."""
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
        "why": state.why or str((state.failure or {}).get("evidence") or ""),
    }


def select_jobs(store: Store, ids: Sequence[str], *, state: str | None = None, name: str | None = None) -> list[Record]:
    """The jobs of these ids, or those in this state and of this name.

    Raises:
        UsageError: none was named, or one is not there.
    """
    if ids and (state or name):
        raise UsageError("give job ids, or --state and --name, not both")
    if ids:
        return list({record.directory: record for record in map(store.find, ids)}.values())
    if not state and not name:
        raise UsageError("which job?", hint="give ids, or --state, or --name; `tpux list` shows them")
    if not (records := [record for record, job in readable(store) if matches(job, state, name)]):
        say("there are no such jobs")
    return records


def readable(store: Store, user: str | None = None) -> Iterator[tuple[Record, State]]:
    """The jobs of a user and how they are; one whose files are corrupt costs a message, and not the others."""
    for record in store.records(user):
        try:
            yield record, record.refresh()
        except TpuxError as error:
            say(f"warning: job {record.directory.name} cannot be read: {error}")


def matches(job: State, state: str | None, name: str | None) -> bool:
    """Whether a job is in this state and its name matches this pattern."""
    if state and job.state != state:
        return False
    if not name:
        return True
    from fnmatch import fnmatchcase

    return fnmatchcase(job.name, name)


def select_modules(job: Job, only: Sequence[str] | None) -> list[str]:
    """The job's modules, or those of them that `--only` names.

    Raises:
        UsageError: it has no such module.
    """
    for word in only or []:
        if word not in job.modules:
            hint = f"it has {', '.join(job.modules)}" if job.modules else "it has none"
            raise UsageError(f"job {job.id} has no module {word!r}", hint=hint)
    return [word for word in job.modules if not only or word in only]
