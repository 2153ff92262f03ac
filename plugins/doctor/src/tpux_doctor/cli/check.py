"""`tpux check` (Workers): check whether a job's workers are ready."""

from __future__ import annotations

from typing import cast

import typer

from tpux import JsonValue, api
from tpux.api.options import JobArg, Json, OnlyModules, OnlyWorkers, select_modules, select_workers
from tpux.api.text import echo

app = api.new_app()


@app.command(epilog="Example: tpux check 12\n\nExample: tpux check 12 --only venv --worker 2")
def check(job: JobArg, only: OnlyModules = None, worker: OnlyWorkers = None, json: Json = False) -> None:
    """Check whether each module finds its workers ready, and why not; changes nothing.

    Exit codes: 0 all are ready, 1 one is not.
    """
    from tpux_doctor.examine import check_job

    connection = api.workers(job)
    modules = select_modules(connection.job, only)
    verdicts = check_job(connection, select_workers(connection, worker), modules)
    ready = all(verdict.ready for verdict in verdicts)
    if json:
        rows = cast("list[JsonValue]", [verdict.to_json() for verdict in verdicts])
        api.emit({"id": connection.job.id, "ready": ready, "modules": rows})
    elif not modules:
        api.say(f"job {connection.name} has no modules; nothing to prepare")
    for verdict in [] if json else verdicts:
        echo(f"worker {verdict.worker}  {verdict.module}  {verdict.text}")
    raise typer.Exit(0 if ready else 1)
