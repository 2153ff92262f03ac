"""`tpux check`: check whether a job's workers are ready."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import typer

from tpux.cli.common import (
    JobArg,
    Json,
    OnlyModules,
    OnlyWorkers,
    echo,
    emit,
    new_app,
    say,
    select_modules,
    select_workers,
    short_id,
)
from tpux.errors import Exit

if TYPE_CHECKING:
    from tpux.model.json import JsonValue

app = new_app()


@app.command(epilog="Example: tpux check 12\n\nExample: tpux check 12 --only venv --worker 2")
def check(job: JobArg, only: OnlyModules = None, worker: OnlyWorkers = None, json: Json = False) -> None:
    """Check whether each module finds its workers ready, and why not; changes nothing.

    Exit codes: 0 all are ready, 1 one is not.
    """
    from tpux.lifecycle.check import check_job
    from tpux.lifecycle.connection import connect_job

    connection = connect_job(job)
    modules = select_modules(connection.job, only)
    verdicts = check_job(connection, select_workers(connection, worker), modules)
    ready = all(verdict.ready for verdict in verdicts)
    if json:
        rows = cast("list[JsonValue]", [verdict.to_json() for verdict in verdicts])
        emit({"id": connection.job.id, "ready": ready, "modules": rows})
    elif not modules:
        say(f"job {short_id(connection.job.id)} has no modules; nothing to prepare")
    for verdict in [] if json else verdicts:
        echo(f"worker {verdict.worker}  {verdict.module}  {verdict.text}")
    raise typer.Exit(Exit.OK if ready else Exit.ERROR)
