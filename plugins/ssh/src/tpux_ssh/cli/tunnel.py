"""`tpux tunnel` (Workers): forward ports of this machine to workers of a job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tpux import api
from tpux.api.options import JobArg, OnlyWorkers, select_workers

if TYPE_CHECKING:
    from tpux.api import JobConnection

app = api.new_app()


@app.command(
    epilog="Example: tpux tunnel 12 6006\n\nExample: tpux tunnel 12 8888:6006 5678 --worker 3"
    "\n\nExample: tpux tunnel 12 9012 --worker all"
)
def tunnel(
    job: JobArg,
    ports: Annotated[
        list[str],
        typer.Argument(metavar="PORT...", help="A worker's port, or LOCAL:REMOTE for another one on this machine."),
    ],
    worker: OnlyWorkers = None,
) -> None:
    """Forward ports of this machine to a job's workers, such as TensorBoard's 6006; by default to worker 0.

    Of several workers each gets the next local port. Only programs on this machine can connect. After a preemption it
    connects to the new machines. It ends with Ctrl-C, or when the job has ended and holds no machines.
    """
    from tpux_ssh.tunnel import Tunnel, plan

    held = api.workers(job, or_machines=True)
    chosen = [one.index for one in select_workers(held, worker or ["0"])]
    with Tunnel(plan(ports, chosen)) as tunnel:
        tunnel.connect(held)
        tunnel.wait()
        while (current := _held_now(held)) is not None:
            tunnel.connect(current)
            tunnel.wait()


def _held_now(held: JobConnection) -> JobConnection | None:
    """Return the machines once the job holds some; None if it has ended and holds none."""
    if not held.machines:
        *_, info = api.follow(held.name, lambda info: info.machines is not None or info.ended, note=api.say)
        if info.machines is None:
            again = "rerun" if info.state == "succeeded" else "resume"
            api.say(f"{held.title} is {info.state} and holds no machines; `tpux {again} {held.name}` requests new ones")
            return None
    return api.workers(held.name, or_machines=True)
