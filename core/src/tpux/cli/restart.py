"""`tpux restart`: start jobs' programs again on the same machines, without setting these up."""

from __future__ import annotations

from tpux.cli.common import (
    JobsArg,
    OfName,
    OfState,
    Yes,
    confirm,
    describe_jobs,
    new_app,
    select_jobs,
    short_id,
    short_ids,
)
from tpux.cli.reboot import stop_and_resume
from tpux.errors import UsageError
from tpux.store import Store
from tpux.store.state import State

app = new_app()


@app.command(epilog="Example: tpux sync 12 && tpux restart 12 -y")
def restart(jobs: JobsArg = None, yes: Yes = False, state: OfState = None, name: OfName = None) -> None:
    """Start jobs' programs again on the same machines, without set-up.

    The program is stopped and resumed from its last checkpoint. Of the modules, only those run that were updated since
    the program started, such as the code by `tpux sync`. If the machines are lost meanwhile, the job is resumed on new
    ones, which are set up completely.
    """
    store = Store()
    records = select_jobs(store, jobs or [], state=state, name=name, guess=True)
    for record in records:
        _require_program(record.refresh())
    if records:
        if any(not record.state.ended for record in records):
            confirm(
                f"{describe_jobs(records)}\nStop the program of job {short_ids(records)} and start it again?", yes=yes
            )
        stop_and_resume(store, records, skip_setup=True)


def _require_program(state: State) -> None:
    """Refuse a job that has no program to restart, or no machines to start it on."""
    job = short_id(state.id)
    if state.state == "succeeded":
        raise UsageError(f"job {job} has succeeded", hint=f"start it from scratch: tpux rerun {job}")
    if state.machines is None and state.ended:
        raise UsageError(f"job {job} holds no machines", hint=f"request new ones: tpux resume {job}")
    if not state.ended and not state.attempt_open:
        hint = f"follow its start: tpux logs -f {job}; then type this again if code was sent meanwhile"
        raise UsageError(f"job {job} is {state.state}: its program is not running", hint=hint)
