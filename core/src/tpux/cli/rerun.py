"""`tpux rerun`: start jobs again from scratch."""

from __future__ import annotations

from tpux.cli.common import JobsArg, OfName, OfState, new_app
from tpux.cli.restart import request_restart

app = new_app()


@app.command(epilog="Example: tpux rerun --state failed --name 'lr-*'")
def rerun(
    jobs: JobsArg = None,
    state: OfState = None,
    name: OfName = None,
) -> None:
    """Start jobs that have ended again from scratch, with TPUX_RESUME=0 and stage 0."""
    request_restart("rerun", jobs or [], state, name)
