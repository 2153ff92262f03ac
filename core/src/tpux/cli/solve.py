"""`tpux solve`: run the solvers on a job's workers."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated

import typer

from tpux.cli.common import DryRun, Json, OnlyWorkers, echo, emit, new_app, readable, say, select_workers, short_id
from tpux.cli.diagnose import Target
from tpux.errors import Exit, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpux.lifecycle.connection import JobConnection
    from tpux.lifecycle.repair import PlannedRepair, Repair
    from tpux.model.steps import Step

app = new_app()
_NOTHING = "nothing to repair"


@app.command(epilog="Example: tpux solve 12 --dry-run\n\nExample: tpux solve my-tpu --force")
def solve(
    job: Target,
    worker: OnlyWorkers = None,
    force: Annotated[
        bool, typer.Option("--force", help="End also processes that tpux did not start, as solve.force does.")
    ] = False,
    dry_run: DryRun = False,
    steps: Annotated[
        bool, typer.Option("--steps", help="With --dry-run: print also the scripts of the steps.")
    ] = False,
    json: Json = False,
) -> None:
    """Repair the workers of a job that has ended and holds its machines, or of a TPU without a job, by its name.

    The solvers of all plugins run, as before an attempt after tpu-busy: they end what earlier programs have left on
    the accelerator, remove stale lock files and full logs, and mount dead buckets again. With --dry-run they only say
    what they would do on which worker.

    Exit codes: 0 done, 1 a solver failed, or a worker could not be examined.
    """
    from tpux.lifecycle.connection import connect_job_or_machines
    from tpux.lifecycle.repair import plan_repairs, repair_workers

    if steps and not dry_run:
        raise UsageError("--steps requires --dry-run")
    connection = connect_job_or_machines(job)
    if force:
        if connection.machines and not dry_run:
            _require_unused(connection)
        connection = _forced(connection)
    workers = select_workers(connection, worker)
    if dry_run:
        planned = plan_repairs(connection, workers)
        if json:
            emit([one.to_json() for one in planned])
        else:
            _print_plan(planned, steps=steps)
        raise typer.Exit(Exit.ERROR if any(one.problem for one in planned) else Exit.OK)
    if not connection.machines and not connection.state.ended:
        hint = f"stop it first: tpux stop {connection.name}; or see what is wrong: tpux diagnose {connection.name}"
        raise UsageError(f"{connection.title} is {connection.state.state}", hint=hint)
    repairs = repair_workers(connection, workers)
    if json:
        emit([asdict(repair) for repair in repairs])
    for repair in [] if json else repairs:
        _print_repair(repair)
    raise typer.Exit(Exit.ERROR if any(repair.problem for repair in repairs) else Exit.OK)


def _print_repair(repair: Repair) -> None:
    lines = [line for line in repair.log.splitlines() if line and not line.startswith(("$ ", "exit "))]
    lines = [line for line in lines if line not in repair.problem]
    for line in lines or ([] if repair.problem else [_NOTHING]):
        echo(f"worker {repair.worker}  {repair.plugin}  {line}")
    if repair.problem:
        say(f"worker {repair.worker}: {repair.plugin or 'unreachable'}: {repair.problem}")


def _print_plan(planned: Sequence[PlannedRepair], *, steps: bool) -> None:
    """Print each action once, with the workers on which it would be done; with `steps` also the scripts."""
    from tpux.cli.setup import print_steps
    from tpux.lifecycle.check import PlannedSteps

    actions: dict[tuple[str, str], list[int]] = {}
    scripts: dict[tuple[str, tuple[Step, ...]], list[int]] = {}
    for one in planned:
        for action in one.would or ([] if one.problem else [_NOTHING]):
            actions.setdefault((one.plugin, action), []).append(one.worker)
        if one.steps:
            scripts.setdefault((one.plugin, one.steps), []).append(one.worker)
        if one.problem:
            say(f"worker {one.worker}: {one.plugin or 'unreachable'}: {one.problem}")
    for (plugin, action), workers in actions.items():
        echo(f"worker {', '.join(map(str, workers))}  {plugin}  {action}")
    if steps or not planned:
        print_steps(
            [PlannedSteps(plugin, "solve", workers, taken) for (plugin, taken), workers in scripts.items()],
            nothing="no solvers are installed",
        )


def _require_unused(connection: JobConnection) -> None:
    """Raise UsageError if a job's program may run on machines that were given by their name: it would be ended."""
    from tpux.store import Store

    for record, state in readable(Store()):
        if state.machines is not None and state.machines.name == connection.machines and not state.ended:
            shown = short_id(record.id)
            message = f"job {shown}, which is {state.state}, holds {connection.machines}: --force would end its program"
            raise UsageError(
                message, hint=f"stop it first: tpux stop {shown}; or see what is wrong: tpux diagnose {shown}"
            )


def _forced(connection: JobConnection) -> JobConnection:
    sections = {**connection.job.sections, "solve": connection.job.solve.model_copy(update={"force": True})}
    return replace(connection, job=replace(connection.job, sections=sections))
