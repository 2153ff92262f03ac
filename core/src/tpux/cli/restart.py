"""What resume and rerun share."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from tpux.cli.common import say, select_jobs
from tpux.errors import TpuxError, UsageError

if TYPE_CHECKING:
    from tpux.store.record import Record

HEEDED_WITHIN = 10.0
"""Seconds that the command waits for the supervisor to take up what is wanted."""


def start_again(want: Literal["resume", "rerun"], ids: Sequence[str], state: str | None, name: str | None) -> None:
    """Write down that these jobs are wanted again, and see to it that a supervisor hears it.

    Raises:
        UsageError: a job runs already, or has nothing to resume.
    """
    from tpux.lifecycle.create import restore_secrets
    from tpux.store import Store, requests
    from tpux.supervisor import client

    store = Store()
    records = select_jobs(store, ids, state=state, name=name)
    for record in records:
        job = record.refresh()
        if job.state == "succeeded" and want == "resume":
            raise UsageError(f"job {job.id} has succeeded", hint=f"`tpux rerun {job.id}` starts it from scratch")
        if not job.ended and job.state not in {"stopping", "recovering"}:
            raise UsageError(f"job {job.id} is {job.state} already", hint=f"`tpux stop {job.id}` first")
    for record in records:
        if record.refresh().ended:
            restore_secrets(record)
    wishes = {record: requests.write(record.directory, want) for record in records}
    if records:
        client.notify(store)
    for record, wish in wishes.items():
        job_id = record.directory.name
        starts = "starts again" if _heeded(record, wish.serial) else "starts again as soon as it has stopped"
        say(f"job {job_id} {starts}: `tpux logs -f {job_id}` follows it")


def _heeded(record: Record, serial: str) -> bool:
    """Wait for the supervisor, so that the command after this one meets the job as it is wanted; whether it is.

    Raises:
        TpuxError: the supervisor does not take it up.
    """
    deadline = time.monotonic() + HEEDED_WITHIN
    while (job := record.refresh()).ended and job.wanted != serial:
        if time.monotonic() > deadline:
            hint = "the wish is written down, and heeded once a supervisor runs: see `tpux supervisor status`"
            raise TpuxError(f"nobody took it up within {HEEDED_WITHIN:.0f} s", where=f"job {job.id}", hint=hint)
        time.sleep(0.02)
    return job.wanted == serial
