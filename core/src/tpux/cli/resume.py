"""`tpux resume`: start jobs again from their last checkpoint."""

from __future__ import annotations

from tpux.cli.common import JobsArg, OfName, OfState, new_app
from tpux.cli.restart import request_restart

app = new_app()


@app.command(epilog="Example: tpux resume 12")
def resume(
    jobs: JobsArg = None,
    state: OfState = None,
    name: OfName = None,
) -> None:
    """Start stopped or failed jobs again from their last checkpoint.

    A job that still holds its machines continues on them; otherwise it requests new ones.
    """
    request_restart("resume", jobs or [], state, name)
