"""`tpux diagnose` (Workers): examine a job and its workers; name the remedy of each problem."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated

import typer

from tpux import Finding, UsageError, api
from tpux.api.options import Json, OnlyWorkers, complete_jobs, select_workers
from tpux.api.text import describe_failure, echo, echo_painted, paint

if TYPE_CHECKING:
    from tpux_doctor.examine import Examined

app = api.new_app()
LEVEL_COLOURS = {"error": "red", "warning": "yellow", "note": None, "ok": "green"}
Target = Annotated[
    str,
    typer.Argument(
        metavar="JOB", help="The job's id or name, or the name of a TPU without a job.", autocompletion=complete_jobs
    ),
]


@app.command(epilog="Example: tpux diagnose 12\n\nExample: tpux diagnose my-tpu --worker 0")
def diagnose(job: Target, worker: OnlyWorkers = None, json: Json = False) -> None:
    """Examine a job and its workers: state, machines, memory, disks, mounts, what holds the devices, modules, JAX.

    Changes nothing on the workers. Each problem is shown with its remedy.

    `tpux describe` is the same command; `tpux show` prints a job's state, its machines and its last events.

    Exit codes: 0 nothing is wrong, 1 something is.
    """
    from tpux_doctor.examine import Examined, diagnose_machines

    info = _find(job)
    found = [] if info is None else [Examined(None, _of_state(info))]
    if info is None or info.machines is not None:
        connection = api.workers(job, or_machines=True) if info is None else api.workers(info.id)
        found += diagnose_machines(connection, select_workers(connection, worker))
    if info is not None:
        found = [replace(one, finding=_with_current_hint(one.finding, info)) for one in found]
    if json:
        api.emit([{"worker": one.worker, **asdict(one.finding)} for one in found])
    else:
        for finding, workers in _merged(found):
            _print(finding, workers)
    wrong = any(one.finding.level in {"error", "warning"} for one in found)
    raise typer.Exit(1 if wrong else 0)


def _find(name: str) -> api.JobInfo | None:
    """Return a job; None if there is none of this name: machines that no job holds may have it."""
    try:
        info = api.job(name, note=api.say)
    except UsageError:
        return None
    if not info.done:
        api.supervisor.start_if_needed()
    return info


def _of_state(info: api.JobInfo) -> Finding:
    job = int(info.id)
    message = f"job {job} {info.name}: {info.state}" + (f": {info.why}" if info.why else "")
    if info.state != "failed" or info.failure is None:
        return Finding("ok", message, hint=info.hint)
    hint = info.failure.hint or info.hint or f"tpux logs {job} -n 50; then tpux resume {job}"
    return Finding("error", f"{message} ({describe_failure(info.failure)})", hint=hint)


def _with_current_hint(finding: Finding, info: api.JobInfo) -> Finding:
    return replace(finding, hint=api.current_hint(finding.hint, info))


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
