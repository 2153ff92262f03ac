"""`tpux supervisor`: the process that drives the user's jobs."""

from __future__ import annotations

import typer

from tpux.cli.common import Json, emit, new_app, readable, say

app = new_app()


@app.callback()
def supervisor() -> None:
    """Look at, start or stop the background process that drives your jobs."""


@app.command(epilog="Example: tpux supervisor status --json")
def status(json: Json = False) -> None:
    """Show whether it runs, and for how many jobs."""
    from tpux.store import Store
    from tpux.supervisor import client

    store = Store()
    pid = client.pid(store)
    live = [job.id for _, job in readable(store) if not job.done]
    log = str(client.Files(store.supervisor).log)
    if json:
        emit({"pid": pid, "running": pid is not None, "user": store.user, "jobs": live, "log": log})
    elif pid is None:
        typer.echo(f"no supervisor runs; {len(live)} job(s) to drive")
    else:
        typer.echo(f"supervisor {pid} drives {len(live)} job(s); its log is {log}")


@app.command(epilog="Example: tpux supervisor start")
def start() -> None:
    """Start it; every command that acts on a job does that by itself."""
    from tpux.store import Store
    from tpux.supervisor import client

    client.notify(Store())


@app.command(epilog="Example: tpux supervisor stop")
def stop() -> None:
    """End it, and leave the jobs' programs running; the next command that acts on a job starts it again."""
    from tpux.store import Store
    from tpux.supervisor import client

    say("the supervisor has ended; programs on workers go on" if client.stop(Store()) else "no supervisor runs")
