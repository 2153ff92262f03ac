"""`tpux resume`: start a job again from its last checkpoint."""

from __future__ import annotations

from tpux.cli.common import JobsArg, OfName, OfState, new_app
from tpux.cli.restart import start_again

app = new_app()


@app.command(epilog="Example: tpux resume 12")
def resume(
    jobs: JobsArg = None,
    state: OfState = None,
    name: OfName = None,
) -> None:
    """Start stopped or failed jobs again, from their last checkpoint, on their machines if they still have them."""
    start_again("resume", jobs or [], state, name)
