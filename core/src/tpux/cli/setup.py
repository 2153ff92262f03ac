"""`tpux setup`: prepare a job's workers without running the command."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tpux.cli import completion
from tpux.cli.common import (
    DryRun,
    Json,
    OnlyModules,
    OnlyWorkers,
    Overrides,
    echo,
    emit,
    find_job,
    new_app,
    say,
    select_modules,
    short_id,
    worker_numbers,
)
from tpux.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpux.lifecycle.plan import PlannedSteps
    from tpux.model.json import JsonValue
    from tpux.store.state import State

app = new_app()

Subject = Annotated[
    str,
    typer.Argument(metavar="JOB|CONFIG", help="A job, or a config for --dry-run.", autocompletion=completion.jobs),
]


@app.command(
    epilog="Example: tpux setup 12 --only venv --worker 2\n\nExample: tpux setup train.yaml --dry-run",
)
def setup(
    subject: Subject,
    overrides: Overrides = None,
    only: OnlyModules = None,
    worker: OnlyWorkers = None,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Prepare the workers of a stopped or failed job on the machines that it holds; the job stays stopped.

    With --dry-run, print each step that would run, for a job or a config, without any machine.
    """
    workers = worker_numbers(worker)
    is_config = Path(subject).is_file() or subject.endswith((".yaml", ".yml"))
    if dry_run:
        planned = _of_config(subject, overrides, only, workers) if is_config else _of_job(subject, only, workers)
        if json:
            emit([_to_json(one) for one in planned])
        else:
            _print_steps(planned)
        return
    if is_config:
        raise UsageError(
            f"{subject} is a config, not a job", hint=f"create a job first: tpux create {subject}; or add --dry-run"
        )
    if json or overrides:
        raise UsageError("--json and KEY=VALUE require --dry-run")
    raise typer.Exit(_set_up(subject, only, workers))


def _set_up(name: str, only: list[str] | None, workers: list[int]) -> int:
    from tpux.cli.follow import follow
    from tpux.lifecycle.connection import connect_job
    from tpux.store import Store, files, hooks, requests
    from tpux.store.secrets import restore_secrets
    from tpux.supervisor import client

    store = Store()
    record = find_job(store, name)
    _require_ended(record.refresh())
    connection = connect_job(record.id)
    modules = select_modules(connection.job, only)
    for index in workers:
        connection.worker(index)
    if not modules:
        say(f"job {short_id(connection.job.id)} has no modules; nothing to prepare")
        return 0
    restore_secrets(record)
    hooks.start_trace(record.directory)
    since = files.length(record.events_path)
    kept = record.refresh().kept
    requests.write(record, "setup", only=[*modules], workers=[*workers], keep=kept)
    client.notify(store)
    code = follow(store, record, workers=(), since=since)
    return 0 if record.refresh().state == "stopped" and record.refresh().setup_only else code


def _require_ended(job: State) -> None:
    shown = short_id(job.id)
    if not job.ended:
        hint = f"stop it first: tpux stop {shown}; or check its workers while it runs: tpux check {shown}"
        raise UsageError(f"job {shown} is {job.state}", hint=hint)
    if job.state == "succeeded":
        raise UsageError(f"job {shown} has succeeded", hint=f"prepare its workers and run it: tpux rerun {shown}")


def _of_job(name: str, only: list[str] | None, workers: list[int]) -> list[PlannedSteps]:
    from tpux.lifecycle.connection import connect_job
    from tpux.lifecycle.plan import plan_steps

    connection = connect_job(name)
    chosen = [connection.worker(index) for index in workers] if workers else connection.allocation.workers
    return plan_steps(connection.job, connection.plugins, chosen, select_modules(connection.job, only))


def _of_config(
    path: str, overrides: list[str] | None, only: list[str] | None, workers: list[int]
) -> list[PlannedSteps]:
    from tpux import config
    from tpux.lifecycle.open import draft_job
    from tpux.lifecycle.plan import plan_steps
    from tpux.model.machines import Worker
    from tpux.plugin.manager import Plugins
    from tpux.store import Store

    loaded = config.load(Path(path), overrides or [], plugins=Plugins())
    for warning in loaded.warnings:
        say(f"warning: {warning}")
    job = draft_job(Store(), loaded, loaded.plugins)
    if loaded.workers is None:
        say("the number of workers is known only to the allocator; these are the steps on one worker")
    count = loaded.workers or 1
    if missing := [index for index in workers if index >= count]:
        raise UsageError(f"there is no worker {missing[0]}", hint=f"there will be {count}, numbered from 0")
    return plan_steps(
        job, loaded.plugins, [Worker(index) for index in workers or range(count)], select_modules(job, only)
    )


def _print_steps(planned: Sequence[PlannedSteps]) -> None:
    """Print the steps that would be run."""
    from tpux.api.steps import describe_steps

    if not planned:
        say("no modules; nothing to prepare")
    for one in planned:
        echo(f"{one.module}: {one.hook} on worker {', '.join(map(str, one.workers))}")
        for line in describe_steps(one.steps):
            echo(line)


def _to_json(planned: PlannedSteps) -> dict[str, JsonValue]:
    from tpux.api.steps import steps_to_json

    workers: list[JsonValue] = [*planned.workers]
    return {"module": planned.module, "hook": planned.hook, "workers": workers, "steps": steps_to_json(planned.steps)}
