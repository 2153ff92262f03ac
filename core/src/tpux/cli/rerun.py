"""`tpux rerun`: start a job again from scratch."""

from __future__ import annotations

from tpux.cli.common import JobsArg, OfName, OfState, new_app
from tpux.cli.restart import start_again

app = new_app()


@app.command(epilog="Example: tpux rerun --state failed --name 'lr-*'")
def rerun(
    jobs: JobsArg = None,
    state: OfState = None,
    name: OfName = None,
) -> None:
    """Start jobs that have ended again, from scratch: TPUX_RESUME is 0 and the stage begins at 0."""
    start_again("rerun", jobs or [], state, name)
