"""Options and arguments that commands share: `from tpux.api.options import JobArg, Json`.

`JobArg`, `MaybeJobArg` and `JobsArg` are jobs by id or name, completed by the shell; `OnlyWorkers` is `--worker 0-3`,
which `select_workers` reads, and `OnlyModules` is `--only venv`, which `select_modules` reads; `Json` is `--json`.
An option with `click_type=DURATION` is in seconds, typed as 30s or 2h, and `parse_since(text, now)` reads the text of
an option such as `--since yesterday` (`SINCE` describes what it accepts).

Example:
    def uptime(job: JobArg, worker: OnlyWorkers = None, json: Json = False) -> None: ...
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from tpux.api.times import SINCE as SINCE
from tpux.api.times import parse_since as parse_since
from tpux.console import DURATION as DURATION
from tpux.errors import TpuxError, UsageError

if TYPE_CHECKING:
    from tpux.lifecycle.connection import JobConnection
    from tpux.model.job import Job
    from tpux.model.machines import Worker
    from tpux.store.record import Record
    from tpux.store.state import State


def complete_jobs(incomplete: str) -> list[tuple[str, str]]:
    """Complete job ids, and names that only one job has; newest first.

    Args:
        incomplete: what was typed so far.

    Returns:
        Each completion and its description.
    """
    from collections import Counter

    from tpux.store import Store

    try:
        records = [*Store().records()]
    except (TpuxError, OSError):
        return []  # an error would garble the prompt; the command itself reports it
    states = [state for record in reversed(records) if (state := _state_of(record))]
    named = Counter(state.name for state in states)
    found = [(state.id, f"{state.name}, {state.state}") for state in states]
    found += [(state.name, f"{state.id}, {state.state}") for state in states if named[state.name] == 1]
    return [item for item in found if item[0].startswith(incomplete)]


def _state_of(record: Record) -> State | None:
    try:
        return record.refresh()
    except (TpuxError, OSError):
        return None  # an error would garble the prompt; the command itself reports it


JOB = "The job's id or name; - is the one that you created last"
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
JobArg = Annotated[str, typer.Argument(metavar="JOB", help=f"{JOB}.", autocompletion=complete_jobs)]
MaybeJobArg = Annotated[
    str | None,
    typer.Argument(metavar="[JOB]", help=f"{JOB}. Default: the only active one.", autocompletion=complete_jobs),
]
JobsArg = Annotated[
    list[str] | None,
    typer.Argument(metavar="[JOB]...", help="The jobs' ids or names; - is the last.", autocompletion=complete_jobs),
]
OnlyWorkers = Annotated[
    list[str] | None,
    typer.Option(
        "-w", "--worker", "--workers", metavar="LIST", help="Only these workers: all, or numbers such as 0,2 or 0-3."
    ),
]
OnlyModules = Annotated[list[str] | None, typer.Option("--only", metavar="MODULE", help="Only this module.")]


def worker_numbers(lists: Sequence[str] | None) -> list[int]:
    """Return the worker numbers that `--worker` names: `0`, `0,2`, `0-3`, several of these; empty means all.

    Args:
        lists: the values of the option, in order.

    Raises:
        UsageError: a value is malformed.
    """
    chosen: list[int] = []
    for text in lists or []:
        if text == "all":
            return []
        for part in text.split(","):
            first, dash, last = part.strip().partition("-")
            if not first.isdecimal() or (dash and not last.isdecimal()) or int(last or first) < int(first):
                raise UsageError(f"--worker {text}: {part!r} is not a worker number", hint="use all, 0,2 or 0-3")
            chosen += range(int(first), int(last or first) + 1)
    return list(dict.fromkeys(chosen))


def select_workers(connection: JobConnection, lists: Sequence[str] | None) -> list[Worker]:
    """Return the workers of a job that `--worker` names, all by default. Since 0.1.

    Args:
        connection: the job's machines, from `api.workers`.
        lists: the value of an option `OnlyWorkers`.

    Raises:
        UsageError: a value is malformed, or there is no such worker.
    """
    numbers = worker_numbers(lists)
    return [connection.worker(index) for index in numbers] if numbers else list(connection.allocation.workers)


def select_modules(job: Job, only: Sequence[str] | None) -> list[str]:
    """Return the job's modules, filtered by `--only`. Since 0.1.

    Args:
        job: the job.
        only: the value of an option `OnlyModules`.

    Raises:
        UsageError: the job has no such module.
    """
    for name in only or []:
        if name not in job.modules:
            hint = f"its modules are {', '.join(job.modules)}" if job.modules else "it has none"
            who = f"job {int(job.id)}" if int(job.id) else "the config"
            raise UsageError(f"{who} has no module {name!r}", hint=hint)
    return [name for name in job.modules if not only or name in only]
