"""`tpux check`: whether a job's workers are ready."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import typer

from tpux.cli.common import JobArg, Json, OnlyModules, OnlyWorkers, emit, new_app, say, select_modules
from tpux.errors import Exit

if TYPE_CHECKING:
    from tpux.plugin.machines import JsonValue

app = new_app()


@app.command(epilog="Example: tpux check 12\n\nExample: tpux check 12 --only venv --worker 2")
def check(job: JobArg, only: OnlyModules = None, worker: OnlyWorkers = None, json: Json = False) -> None:
    """Look whether each module finds its workers ready, and why not; changes nothing, and may be done any time.

    Exits with 0 where all are ready, with 1 where one is not.
    """
    from tpux.lifecycle.check import look
    from tpux.lifecycle.connection import connect_job

    held = connect_job(job)
    modules = select_modules(held.job, only)
    workers = [held.worker(index) for index in worker] if worker else list(held.allocation.workers)
    verdicts = look(held, workers, modules)
    ready = all(verdict.ready for verdict in verdicts)
    if json:
        rows = cast("list[JsonValue]", [verdict.to_json() for verdict in verdicts])
        emit({"id": held.job.id, "ready": ready, "modules": rows})
    elif not modules:
        say(f"job {held.job.id} has no modules: there is nothing to prepare")
    for verdict in [] if json else verdicts:
        typer.echo(f"worker {verdict.worker}  {verdict.module}  {verdict.told}")
    raise typer.Exit(Exit.OK if ready else Exit.ERROR)
