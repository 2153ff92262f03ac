"""`tpux plugins trace`: show which plugin answered which hook of a job."""

from __future__ import annotations

from typing import Annotated, cast

import typer

from tpux.cli.common import JobArg, Json, echo, emit, find_job, iso, new_app, short_id
from tpux.errors import UsageError

app = new_app()


@app.command(epilog="Example: TPUX_TRACE_HOOKS=1 tpux run train.yaml; tpux plugins trace 12")
def trace(
    job: JobArg,
    listeners: Annotated[bool, typer.Option("--listeners", help="Also the calls of listeners that succeeded.")] = False,
    json: Json = False,
) -> None:
    """Show which plugin answered which hook of a job.

    The calls are in the order in which they began. A job is traced if TPUX_TRACE_HOOKS=1 was set for the command that
    created it, or that last started it again.
    """
    from tpux.store import Store
    from tpux_testing import traces

    record = find_job(Store(), job)
    calls = traces.read_trace(record.directory)
    if calls is None:
        shown = short_id(record.id)
        hint = f"TPUX_TRACE_HOOKS=1 tpux resume {shown} traces it from then on, TPUX_TRACE_HOOKS=1 tpux run a new job"
        raise UsageError(f"the hook calls of job {shown} are not traced", hint=hint)
    calls = sorted(calls, key=lambda call: cast("float", call["at"]))
    shown_calls = [call for call in calls if listeners or call["hook"] != "on_event" or call["outcome"] == "failed"]
    rows = [{**call, "at": iso(cast("float", call["at"]))} for call in shown_calls]
    if json:
        emit(rows)
        return
    from tabulate import tabulate

    cells = [
        (
            str(row["at"])[:23].replace("T", " "),
            row["plugin"],
            row["hook"],
            "-" if row["worker"] is None else row["worker"],
            f"{row['seconds']:.3f}",
            f"{row['own_seconds']:.3f}",
            "-" if row["steps"] is None else row["steps"],
            f"{row['outcome']}: {row['error']}" if row["error"] else row["outcome"],
        )
        for row in rows
    ]
    headers = ("TIME", "PLUGIN", "HOOK", "WORKER", "SECONDS", "IN PLUGIN", "STEPS", "RESULT")
    echo(tabulate(cells, headers=headers, tablefmt="plain", disable_numparse=True))
