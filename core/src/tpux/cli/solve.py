"""`tpux solve`: run the solvers on a job's workers."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated

import typer

from tpux.cli.common import DryRun, Json, OnlyWorkers, echo, emit, new_app, say, select_workers
from tpux.cli.diagnose import Target
from tpux.errors import Exit, UsageError

if TYPE_CHECKING:
    from tpux.lifecycle.connection import JobConnection

app = new_app()


@app.command(epilog="Example: tpux solve 12 --dry-run\n\nExample: tpux solve my-tpu --force")
def solve(
    job: Target,
    worker: OnlyWorkers = None,
    force: Annotated[
        bool, typer.Option("--force", help="End also processes that tpux did not start, as solve.force does.")
    ] = False,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Repair the workers of a job that has ended and holds its machines, or of a TPU without a job, by its name.

    The solvers of all plugins run, as before an attempt after tpu-busy: they end what earlier programs have left on
    the accelerator, and remove stale lock files and full logs. `tpux diagnose` shows what they would find.

    Exit codes: 0 done, 1 a solver failed.
    """
    from tpux.cli.setup import print_steps
    from tpux.lifecycle.diagnose import plan_repairs, repair_workers
    from tpux.lifecycle.unmanaged import connect_job_or_machines

    connection = connect_job_or_machines(job)
    if force:
        connection = _forced(connection)
    workers = select_workers(connection, worker)
    if dry_run:
        planned = plan_repairs(connection, workers)
        if json:
            emit([one.to_json() for one in planned])
        else:
            print_steps(planned, nothing="no solvers are installed")
        return
    if not connection.machines and not connection.state.ended:
        hint = f"stop it first: tpux stop {connection.name}; or see what is wrong: tpux diagnose {connection.name}"
        raise UsageError(f"{connection.title} is {connection.state.state}", hint=hint)
    repairs = repair_workers(connection, workers)
    if json:
        emit([asdict(repair) for repair in repairs])
    for repair in [] if json else repairs:
        lines = [line for line in repair.log.splitlines() if line and not line.startswith(("$ ", "exit "))]
        lines = [line for line in lines if line not in repair.problem]
        for line in lines or ([] if repair.problem else ["nothing to repair"]):
            echo(f"worker {repair.worker}  {repair.plugin}  {line}")
        if repair.problem:
            say(f"worker {repair.worker}: {repair.plugin or 'unreachable'}: {repair.problem}")
    raise typer.Exit(Exit.ERROR if any(repair.problem for repair in repairs) else Exit.OK)


def _forced(connection: JobConnection) -> JobConnection:
    sections = {**connection.job.sections, "solve": connection.job.solve.model_copy(update={"force": True})}
    return replace(connection, job=replace(connection.job, sections=sections))
