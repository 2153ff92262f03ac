"""`tpux setup`: prepare a job's workers, and run nothing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tpux.cli import completion
from tpux.cli.common import DryRun, Json, OnlyModules, OnlyWorkers, emit, new_app, say, select_modules
from tpux.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpux.lifecycle.check import PlannedSteps
    from tpux.store.state import State

app = new_app()

Subject = Annotated[
    str,
    typer.Argument(metavar="JOB|CONFIG", help="A job, or a config for --dry-run.", autocompletion=completion.jobs),
]
Overrides = Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="What to change in the config.")]


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
    """Prepare the workers of a stopped or failed job, on the machines that it holds; it stays stopped.

    With --dry-run it prints each step that would run, of a job or of a config, and needs no machine.
    """
    is_config = Path(subject).is_file() or subject.endswith((".yaml", ".yml"))
    if dry_run:
        rehearsed = _of_config(subject, overrides, only, worker) if is_config else _of_job(subject, only, worker)
        if json:
            emit([one.to_json() for one in rehearsed])
        else:
            _print(rehearsed)
        return
    if is_config:
        raise UsageError(f"{subject} is a config, and no job", hint="tpux create makes a job of it; or add --dry-run")
    if json or overrides:
        raise UsageError("--json and KEY=VALUE go with --dry-run")
    raise typer.Exit(_set_up(subject, only, worker))


def _set_up(name: str, only: list[str] | None, workers: list[int] | None) -> int:
    from tpux.cli.follow import follow
    from tpux.lifecycle.connection import connect_job
    from tpux.lifecycle.create import restore_secrets
    from tpux.store import Store, files, requests
    from tpux.supervisor import client

    store = Store()
    record = store.find(name)
    _must_rest(record.refresh())
    held = connect_job(name)
    modules = select_modules(held.job, only)
    for index in workers or []:
        held.worker(index)
    if not modules:
        say(f"job {held.job.id} has no modules: there is nothing to prepare")
        return 0
    restore_secrets(record)
    since = files.length(record.events_path)
    kept = record.refresh().kept
    requests.write(record.directory, "setup", only=[*modules], workers=[*(workers or [])], keep=kept)
    client.notify(store)
    code = follow(store, record, workers=(), since=since)
    return 0 if record.refresh().state == "stopped" and record.refresh().only_setup else code


def _must_rest(job: State) -> None:
    if not job.ended:
        hint = f"`tpux stop {job.id}` first; `tpux check {job.id}` looks while it runs"
        raise UsageError(f"job {job.id} is {job.state}", hint=hint)
    if job.state == "succeeded":
        raise UsageError(f"job {job.id} has succeeded", hint=f"`tpux rerun {job.id}` prepares its workers and runs it")


def _of_job(name: str, only: list[str] | None, workers: list[int] | None) -> list[PlannedSteps]:
    from tpux.lifecycle.check import plan_steps
    from tpux.lifecycle.connection import connect_job

    held = connect_job(name)
    chosen = [held.worker(index) for index in workers] if workers else held.allocation.workers
    return plan_steps(held.job, held.plugins, chosen, select_modules(held.job, only))


def _of_config(
    path: str, overrides: list[str] | None, only: list[str] | None, workers: list[int] | None
) -> list[PlannedSteps]:
    from tpux import config
    from tpux.lifecycle.check import plan_steps
    from tpux.lifecycle.create import draft
    from tpux.plugin.machines import Worker
    from tpux.plugin.manager import Plugins
    from tpux.store import Store

    plugins = Plugins()
    loaded = config.load(Path(path), overrides or [], plugins=plugins)
    for warning in loaded.warnings:
        say(f"warning: {warning}")
    job = draft(Store(), loaded)
    if loaded.workers is None:
        say("how many workers there will be, the allocator alone knows: these are the steps on one")
    count = loaded.workers or 1
    if missing := [index for index in workers or [] if index >= count]:
        raise UsageError(f"there is no worker {missing[0]}", hint=f"there will be {count}, counted from 0")
    return plan_steps(job, plugins, [Worker(index) for index in workers or range(count)], select_modules(job, only))


def _print(rehearsed: Sequence[PlannedSteps]) -> None:
    from tpux.plugin.steps import Put

    if not rehearsed:
        say("nothing would be prepared: it has no modules")
    for one in rehearsed:
        typer.echo(f"{one.module}: {one.hook} on worker {', '.join(map(str, one.workers))}")
        for step in one.steps:
            if isinstance(step, Put):
                source = f"{len(step.source)} bytes" if isinstance(step.source, bytes) else step.source
                typer.echo(f"  put {source} to {step.remote}, mode {step.mode:o}")
            else:
                first, *rest = step.script.strip("\n").splitlines()
                typer.echo("\n".join([f"  $ {first}", *(f"    {line}".rstrip() for line in rest)]))
