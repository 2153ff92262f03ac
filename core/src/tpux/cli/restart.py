"""`tpux restart`: start jobs' programs again on the same machines, without setting these up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from tpux.api.watch import watch
from tpux.cli.common import (
    DryRun,
    JobsArg,
    OfName,
    OfState,
    OfTag,
    Yes,
    confirm,
    describe_jobs,
    new_app,
    say,
    select_jobs,
    short_id,
    short_ids,
)
from tpux.cli.restart_request import (
    Sync,
    change_configs,
    discard_configs,
    report_changed_sources,
    report_start,
    request_restart,
    start_options,
)
from tpux.errors import TpuxError, UsageError

if TYPE_CHECKING:
    from tpux.model.json import JsonValue
    from tpux.model.states import RequestAction
    from tpux.store import Store
    from tpux.store.record import Record
    from tpux.store.state import State

app = new_app()

KEEP_FOR = 600.0
"""Seconds for which the machines are kept for the resume, even if tpu.keep_on_stop is shorter."""


@app.command(epilog="Example: tpux sync 12 && tpux restart 12 -y")
def restart(
    jobs: JobsArg = None,
    setup: Annotated[
        bool, typer.Option("--setup", help="Set the workers up again, as a resume does; also without a program.")
    ] = False,
    sync: Sync = False,
    follow: Annotated[
        bool, typer.Option("-f", "--follow", help="Show the new output of the job until it has ended.")
    ] = False,
    yes: Yes = False,
    state: OfState = None,
    name: OfName = None,
    tag: OfTag = None,
    dry_run: DryRun = False,
) -> None:
    """Start jobs' programs again on the same machines, without set-up.

    The program is stopped and resumed from its last checkpoint. Of the modules, only those run that were updated since
    the program started, such as the code by `tpux sync`. If the machines are lost meanwhile, the job is resumed on new
    ones, which are set up completely.

    With --sync, the code and the files that the config names are taken as they are now, and each module is checked.

    `tpux reboot` is `tpux restart --setup`.
    """
    from tpux.cli.follow import follow as follow_job
    from tpux.store import Store

    store = Store()
    records = select_jobs(store, jobs or [], state=state, name=name, tags=tag)
    if follow and len(records) > 1:
        raise UsageError("-f follows one job", hint=f"omit -f, and follow each: tpux logs -f {short_id(records[0].id)}")
    for record in records:
        _require_restartable(record.refresh(), setup=setup)
    if dry_run and records:
        say(f"would restart:\n{describe_jobs(records)}")
    elif records:
        store.require_in_place()
        if any(not record.state.ended for record in records):
            confirm(
                f"{describe_jobs(records)}\nStop the program of job {short_ids(records)} and start it again?", yes=yes
            )
        configs: dict[str, str] = {}
        if sync:  # before the programs are stopped: what cannot be taken must not stop them
            configs = change_configs(store, records, sync=True, action="restart")
        else:
            report_changed_sources(store, records, "restart")
        attempts = [record.state.attempt for record in records]
        _restart(store, records, configs, skip_setup=not setup)
        if follow:
            raise typer.Exit(follow_job(store, records[0], since=records[0].offset, first=attempts[0] + 1))


def _require_restartable(state: State, *, setup: bool) -> None:
    """Refuse a job that has succeeded, or that has no program to restart or no machines to start it on."""
    job = short_id(state.id)
    if state.state == "succeeded":
        raise UsageError(f"job {job} has succeeded", hint=f"start it from scratch: tpux rerun {job}")
    if setup:
        return
    if state.machines is None and state.ended:
        raise UsageError(f"job {job} holds no machines", hint=f"request new ones: tpux resume {job}")
    if not state.ended and not state.attempt_open:
        hint = f"follow its start: tpux logs -f {job}; then type this again if code was sent meanwhile"
        raise UsageError(f"job {job} is {state.state}: its program is not running", hint=hint)


def _restart(store: Store, records: Sequence[Record], configs: Mapping[str, str], *, skip_setup: bool) -> None:
    """Request that jobs stop and resume on the same machines, and wait until each resume has taken effect.

    A job that turns out to have succeeded is left as it is, and named; if all have, that is an error.

    Args:
        store: the store of the jobs.
        records: the jobs.
        configs: the directory of the config that a job is given, by its id.
        skip_setup: set up only what was updated since the last attempt.

    Raises:
        UsageError: all jobs have succeeded.
        TpuxError: a job does not stop in time.
    """
    attempts = {record: record.refresh().attempt for record in records}
    options = {record: start_options(record, configs, skip_setup=skip_setup) for record in records}
    requested = _request(store, options, configs)
    # Before any wait, which a program that does not end makes long.
    if ended := [record for record in records if record not in requested]:
        try:
            request_restart("resume", [record.id for record in ended], skip_setup=skip_setup, configs=configs)
        except (OSError, TpuxError):
            if requested:
                say(f"job {short_ids([*requested])}: the restart is requested, and continues without this command")
            raise
    for record, number in requested.items():
        _wait_for_resume(store, record, number)
    succeeded = [
        record
        for record, attempt in attempts.items()
        if record in requested and record.refresh().state == "succeeded" and record.state.attempt == attempt
    ]
    for record in records:
        if record in succeeded and len(succeeded) < len(records):
            job = short_id(record.id)
            say(f"job {job} has succeeded before it was stopped; from scratch: tpux rerun {job}")
        elif record in requested and record not in succeeded:
            report_start(store, record, "resume", requested[record], options[record])
    discard_configs(succeeded, configs)
    if len(succeeded) == len(records):
        request_restart("resume", [record.id for record in records], skip_setup=skip_setup, configs=configs)


def _request(
    store: Store, options: Mapping[Record, Mapping[str, JsonValue]], configs: Mapping[str, str]
) -> dict[Record, int]:
    """Request a stop and a resume of each job that has not ended; return the numbers of the requests.

    Args:
        store: the store of the jobs.
        options: the options of the resume of each job.
        configs: the directory of the config that a job is given, by its id.
    """
    from tpux.store import hooks, requests
    from tpux.supervisor import client

    requested: dict[Record, int] = {}
    try:
        for record in options:
            if not record.state.ended:
                hooks.start_trace(record.directory)
                # One request: the supervisor starts the program again, whatever becomes of this command.
                then: tuple[RequestAction, Mapping[str, JsonValue]] = ("resume", options[record])
                requested[record] = requests.write(record, "stop", then, keep_for=KEEP_FOR)
    except (OSError, TpuxError):
        discard_configs([record for record in options if record not in requested], configs)
        if requested:
            client.notify(store)
            say(f"job {short_ids([*requested])}: the restart is requested, and continues without this command")
        raise
    client.notify(store)
    return requested


def _wait_for_resume(store: Store, record: Record, number: int) -> None:
    """Wait until a request to start a job again has taken effect, or a later one has replaced it.

    Raises:
        TpuxError: the job does not stop in time.
    """
    from tpux.cli.stop import STOP_TIMEOUT

    job = short_id(record.id)
    try:
        for state in watch(store, record, timeout=STOP_TIMEOUT, warn=say, notice=say):
            if state.last_request_number >= number:
                return
    except KeyboardInterrupt:
        say(f"the restart continues without this command: tpux logs -f {job}")
        raise
    message = f"job {job} is still {record.state.state}: its program starts again once it has stopped"
    raise TpuxError(message, hint=f"tpux logs -f {job}; to leave it stopped: tpux stop {job}")
