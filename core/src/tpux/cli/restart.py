"""Request a resume or a rerun: shared by `tpux resume`, `tpux rerun` and `tpux reboot`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from tpux.cli.common import say, select_jobs, short_id
from tpux.errors import TpuxError, UsageError

if TYPE_CHECKING:
    from tpux.store.record import Record

ACK_TIMEOUT = 10.0
"""Seconds to wait until the supervisor acknowledges a request."""


def request_restart(
    action: Literal["resume", "rerun"], ids: Sequence[str], state: str | None, name: str | None
) -> None:
    """Request that jobs start again, and make sure that a supervisor is running.

    Args:
        action: how they start.
        ids: ids or names of jobs.
        state: instead of ids, the state that the jobs must have.
        name: instead of ids, a pattern that the jobs' names must match.

    Raises:
        UsageError: a job is still running, or has nothing to resume.
        TpuxError: the supervisor did not acknowledge a request in time.
    """
    from tpux.lifecycle.create import restore_secrets
    from tpux.store import Store, requests
    from tpux.supervisor import client

    store = Store()
    records = select_jobs(store, ids, state=state, name=name, guess=action == "resume")
    for record in records:
        job, shown = record.refresh(), short_id(record.id)
        if job.state == "succeeded" and action == "resume":
            raise UsageError(f"job {shown} has succeeded", hint=f"start it from scratch: tpux rerun {shown}")
        if not job.ended and job.state not in {"stopping", "recovering"}:
            raise UsageError(f"job {shown} is already {job.state}", hint=f"stop it first: tpux stop {shown}")
    for record in records:
        if record.refresh().ended:
            restore_secrets(record)
    requested = {record: requests.write(record.directory, action) for record in records}
    if records:
        client.notify(store)
    for record, request in requested.items():
        when = "" if _acknowledged(record, request) else " once it has stopped"
        shown = short_id(record.id)
        say(f"job {shown}: {action} requested, starts{when or ' now'}; follow it: tpux logs -f {shown}")


def _acknowledged(record: Record, request_id: str) -> bool:
    """Block until the supervisor acknowledges the request, so that the next command sees the new state.

    Returns:
        True if it was acknowledged; False if the job is still stopping, so that the request stays pending.

    Raises:
        TpuxError: no supervisor acknowledged it within `ACK_TIMEOUT`.
    """
    deadline = time.monotonic() + ACK_TIMEOUT
    while (job := record.refresh()).last_request_id != request_id and job.state != "stopping":
        if time.monotonic() > deadline:
            hint = "the request is stored and applies once a supervisor runs: tpux supervisor status"
            message = f"no supervisor acknowledged the request within {ACK_TIMEOUT:.0f} s"
            raise TpuxError(message, where=f"job {short_id(job.id)}", hint=hint)
        time.sleep(0.02)
    return job.last_request_id == request_id
