"""`tpux plugins trace`: show which plugin answered which hook of a job."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from json import dumps
from typing import TYPE_CHECKING, Annotated, cast

import typer

from tpux.cli.common import JobArg, Json, echo, emit, find_job, iso, new_app, say, short_id
from tpux.errors import UsageError

if TYPE_CHECKING:
    from tpux.model.json import JsonValue
    from tpux.store.record import Record

    Call = Mapping[str, JsonValue]

app = new_app()
POLL = 0.3
"""Real seconds between two looks at what was added."""


@app.command(
    epilog="Example: TPUX_TRACE_HOOKS=1 tpux run train.yaml; tpux plugins trace 12\n\nExample: tpux plugins trace 12 -f"
)
def trace(
    job: JobArg,
    follow: Annotated[
        bool, typer.Option("-f", "--follow", help="Trace the job, and show each call until the job is done.")
    ] = False,
    listeners: Annotated[bool, typer.Option("--listeners", help="Also the calls of listeners that succeeded.")] = False,
    json: Json = False,
) -> None:
    """Show which plugin answered which hook of a job, and what.

    They are the calls in the supervisor, and those in the shells of the commands that created the job and that act on
    it. Secrets are masked, and answers cut at 2 kB; a terminal shows less than --json. The calls are in the order in
    which they began, with -f in that in which they ended. A job is traced if TPUX_TRACE_HOOKS=1 was set for the command
    that created it, or that last started it again, and from the first -f on.

    TPUX_TRACE=1 lets any command write its own calls of hooks to stderr.
    """
    from tpux.store import Store, files
    from tpux.store.hooks import TRACE
    from tpux_testing import traces

    record = find_job(Store(), job)
    calls, shown = traces.read_trace(record.directory), short_id(record.id)
    if follow:
        if calls is None:
            files.append_output(record.directory / TRACE, b"")
            say(f"job {shown} is traced from now on")
        for call in _follow(record):
            if _is_shown(call, listeners=listeners):
                echo(dumps(_row(call)) if json else "  ".join(_cells(call).values()))
        return
    if calls is None:
        others = f"TPUX_TRACE_HOOKS=1 tpux resume {shown} from then on, TPUX_TRACE_HOOKS=1 tpux run a new job"
        hint = f"tpux plugins trace {shown} -f traces it from now on, {others}"
        raise UsageError(f"the hook calls of job {shown} are not traced", hint=hint)
    calls = sorted(calls, key=lambda call: cast("float", call["at"]))
    chosen = [call for call in calls if _is_shown(call, listeners=listeners)]
    if json:
        emit([_row(call) for call in chosen])
        return
    from tpux.tables import print_table

    rows = [_cells(call) for call in chosen]
    table = {name: [row[name] for row in rows] for name in COLUMNS}
    print_table(table, always=COLUMNS, drop=["steps", "in plugin", "process"], shorten={"result": 10})


COLUMNS = ("time", "process", "plugin", "hook", "worker", "seconds", "in plugin", "steps", "result")


def _is_shown(call: Call, *, listeners: bool) -> bool:
    return listeners or call["hook"] != "on_event" or call["outcome"] == "failed"


def _follow(record: Record) -> Iterator[Call]:
    """Yield the calls in a job's trace, and those that are added, until the job is done and nothing was added."""
    from tpux_testing import traces

    seen, done = 0, False
    while True:
        calls = traces.read_trace(record.directory)
        if calls is None:  # the job was deleted
            return
        yield from calls[seen:]
        if done and len(calls) == seen:
            return
        seen, done = len(calls), record.refresh().done
        time.sleep(POLL)


def _row(call: Call) -> dict[str, JsonValue]:
    return {**call, "at": iso(cast("float", call["at"]))}


def _cells(call: Call) -> dict[str, str]:
    """Return a call by column."""
    result = call["error"] or call.get("answer")  # one that an older tpux has written has none
    cells = (
        str(iso(cast("float", call["at"])))[:23].replace("T", " "),
        call.get("process", "-"),
        call["plugin"],
        call["hook"],
        "-" if call["worker"] is None else call["worker"],
        f"{call['seconds']:.3f}",
        f"{call['own_seconds']:.3f}",
        "-" if call["steps"] is None else call["steps"],
        f"{call['outcome']}: {result}" if result else call["outcome"],
    )
    return dict(zip(COLUMNS, map(str, cells), strict=True))
