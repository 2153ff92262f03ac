"""`tpux solve` (Workers): run the solvers on a job's workers."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated

import typer

from tpux import Step, UsageError, api
from tpux.api.options import Json, OnlyWorkers, select_workers
from tpux.api.text import echo
from tpux_doctor.cli.diagnose import Target

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpux_doctor.repair import PlannedRepair, Repair

app = api.new_app()
_NOTHING = "nothing to repair"


@app.command(epilog="Example: tpux solve 12 --dry-run\n\nExample: tpux solve my-tpu --force")
def solve(
    job: Target,
    worker: OnlyWorkers = None,
    force: Annotated[
        bool, typer.Option("--force", help="End also processes that tpux did not start, as solve.force does.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be done and do nothing.")] = False,
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
    from tpux_doctor.repair import plan_repairs, repair_workers

    if steps and not dry_run:
        raise UsageError("--steps requires --dry-run")
    connection = api.workers(job, or_machines=True)
    if force:
        if connection.machines and not dry_run:
            _require_unused(connection)
        connection = _forced(connection)
    workers = select_workers(connection, worker)
    if dry_run:
        planned = plan_repairs(connection, workers)
        if json:
            api.emit([one.to_json() for one in planned])
        else:
            _print_plan(planned, steps=steps)
        raise typer.Exit(int(any(one.problem for one in planned)))
    if not connection.machines and not connection.state.ended:
        hint = f"stop it first: tpux stop {connection.name}; or see what is wrong: tpux diagnose {connection.name}"
        raise UsageError(f"{connection.title} is {connection.state.state}", hint=hint)
    repairs = repair_workers(connection, workers)
    if json:
        api.emit([asdict(repair) for repair in repairs])
    for repair in [] if json else repairs:
        _print_repair(repair)
    raise typer.Exit(int(any(repair.problem for repair in repairs)))


def _print_repair(repair: Repair) -> None:
    lines = [line for line in repair.log.splitlines() if line and not line.startswith(("$ ", "exit "))]
    lines = [line for line in lines if line not in repair.problem]
    for line in lines or ([] if repair.problem else [_NOTHING]):
        echo(f"worker {repair.worker}  {repair.plugin}  {line}")
    if repair.problem:
        api.say(f"worker {repair.worker}: {repair.plugin or 'unreachable'}: {repair.problem}")


def _print_plan(planned: Sequence[PlannedRepair], *, steps: bool) -> None:
    """Print each action once, with the workers on which it would be done; with `steps` also the scripts."""
    from tpux.api.steps import describe_steps

    actions: dict[tuple[str, str], list[int]] = {}
    scripts: dict[tuple[str, tuple[Step, ...]], list[int]] = {}
    for one in planned:
        for action in one.would or ([] if one.problem else [_NOTHING]):
            actions.setdefault((one.plugin, action), []).append(one.worker)
        if one.steps:
            scripts.setdefault((one.plugin, one.steps), []).append(one.worker)
        if one.problem:
            api.say(f"worker {one.worker}: {one.plugin or 'unreachable'}: {one.problem}")
    for (plugin, action), workers in actions.items():
        echo(f"worker {', '.join(map(str, workers))}  {plugin}  {action}")
    if not planned:
        api.say("no solvers are installed")
    for (plugin, taken), workers in scripts.items() if steps else []:
        echo(f"{plugin}: solve on worker {', '.join(map(str, workers))}")
        for line in describe_steps(taken):
            echo(line)


def _require_unused(connection: api.JobConnection) -> None:
    """Raise UsageError if a job's program may run on machines that were given by their name: it would be ended."""
    for job in api.jobs(warn=api.say):
        if job.machines == connection.machines and not job.ended:
            shown = int(job.id)
            message = f"job {shown}, which is {job.state}, holds {job.machines}: --force would end its program"
            hint = f"stop it first: tpux stop {shown}; or see what is wrong: tpux diagnose {shown}"
            raise UsageError(message, hint=hint)


def _forced(connection: api.JobConnection) -> api.JobConnection:
    sections = {**connection.job.sections, "solve": connection.job.solve.model_copy(update={"force": True})}
    return replace(connection, job=replace(connection.job, sections=sections))
