"""`tpux diagnose`: examine a job and its workers, and name the remedy of each problem."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated

import typer

from tpux.api.event_lines import describe_failure
from tpux.cli import completion
from tpux.cli.common import Json, OnlyWorkers, current_hint, echo, emit, new_app, say, select_workers, short_id
from tpux.console import echo_painted, paint
from tpux.errors import Exit, NoSuchJobError
from tpux.model.failures import Finding

if TYPE_CHECKING:
    from tpux.lifecycle.connection import JobConnection
    from tpux.lifecycle.diagnose import Examined
    from tpux.store.state import State

app = new_app()
LEVEL_COLOURS = {"error": "red", "warning": "yellow", "note": None, "ok": "green"}
Target = Annotated[
    str,
    typer.Argument(
        metavar="JOB", help="The job's id or name, or the name of a TPU without a job.", autocompletion=completion.jobs
    ),
]


@app.command(epilog="Example: tpux diagnose 12\n\nExample: tpux diagnose my-tpu --worker 0")
def diagnose(job: Target, worker: OnlyWorkers = None, json: Json = False) -> None:
    """Examine a job and its workers: state, machines, memory, disks, mounts, what holds the devices, modules, JAX.

    Changes nothing on the workers. Each problem is shown with its remedy.

    `tpux describe` is the same command; `tpux show` prints a job's state, its machines and its last events.

    Exit codes: 0 nothing is wrong, 1 something is.
    """
    from tpux.lifecycle.diagnose import Examined, diagnose_machines

    state, connection = _find(job)
    found = [] if state is None else [Examined(None, _of_state(state))]
    if connection is not None:
        found += diagnose_machines(connection, select_workers(connection, worker))
    if state is not None:
        found = [replace(one, finding=_with_current_hint(one.finding, state)) for one in found]
    if json:
        emit([{"worker": one.worker, **asdict(one.finding)} for one in found])
    else:
        for finding, workers in _merged(found):
            _print(finding, workers)
    wrong = any(one.finding.level in {"error", "warning"} for one in found)
    raise typer.Exit(Exit.ERROR if wrong else Exit.OK)


def _find(name: str) -> tuple[State | None, JobConnection | None]:
    """Return a job and its machines, if it holds any; None and machines that have no job, if the name is theirs."""
    from tpux.lifecycle.connection import connect_job, connect_job_or_machines
    from tpux.store import Store
    from tpux.supervisor import client

    store = Store()
    try:
        record = store.find(name, note=say)
    except NoSuchJobError:
        return None, connect_job_or_machines(name)
    state = record.refresh()
    if not state.done:
        client.ensure_running(store)
    state = client.current_report(store).applied_to(state)
    return state, connect_job(record.id) if state.machines is not None else None


def _of_state(state: State) -> Finding:
    job = short_id(state.id)
    message = f"job {job} {state.name}: {state.state}" + (f": {state.why}" if state.why else "")
    if state.state != "failed" or state.failure is None:
        return Finding("ok", message, hint=state.hint)
    hint = state.failure.hint or state.hint or f"tpux logs {job} -n 50; then tpux resume {job}"
    return Finding("error", f"{message} ({describe_failure(state.failure)})", hint=hint)


def _with_current_hint(finding: Finding, state: State) -> Finding:
    return replace(finding, hint=current_hint(finding.hint, state))


def _merged(found: list[Examined]) -> list[tuple[Finding, list[int]]]:
    """Return each finding once, with the workers that it was found on; problems last, where they are seen."""
    merged: dict[Finding, list[int]] = {}
    for one in found:
        merged.setdefault(one.finding, []).extend([] if one.worker is None else [one.worker])
    return sorted(merged.items(), key=lambda item: item[0].level in {"error", "warning"})


def _print(finding: Finding, workers: list[int]) -> None:
    where = f"worker {', '.join(map(str, workers))}: " if workers else ""
    echo_painted(f"{paint(f'{finding.level:<8}', LEVEL_COLOURS[finding.level])}{paint(where + finding.message, None)}")
    if finding.hint:
        echo(f"{'':<8}hint: {finding.hint}")
