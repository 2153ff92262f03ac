"""`tpux ack` (Run): let jobs that wait look again now."""

from __future__ import annotations

from typing import Annotated

import typer

from tpux import UsageError, api

app = api.new_app()


@app.command(epilog="Example: tpux ack   or: tpux ack 12 13")
def ack(
    jobs: Annotated[
        list[str] | None,
        typer.Argument(metavar="[JOB]...", help="Ids or names. Default: all jobs.", show_default=False),
    ] = None,
) -> None:
    """End the backoff of jobs that wait after a failure, and ask for machines now.

    Jobs that run, or have ended, are left alone: `tpux resume JOB` starts one that has ended.
    """
    hastened = []
    for name in jobs or [each.id for each in api.jobs(warn=api.say) if not each.done]:
        try:
            info = api.job(name, note=api.say)
            waits = api.supervisor.hasten(info.id)
        except UsageError:
            if jobs:
                raise
            continue  # it was deleted meanwhile
        shown = info.id.lstrip("0")
        if waits:
            hastened.append(shown)
        elif jobs:
            raise UsageError(f"job {shown} is {info.state}: it waits for no machines and no backoff")
    api.say(f"looking again: job {', '.join(hastened)}" if hastened else "no job waits for machines or a backoff")
