"""Listener `sheets`: a Google spreadsheet shows which job and user has which machines."""

from __future__ import annotations

from contextlib import suppress
from time import localtime, strftime

from tpux import Job, Section, TpuxError, UsageError, api, events, hookimpl
from tpux_sheets.mirror import Mirror
from tpux_sheets.section import SheetsSection

_LATER = (events.StateChanged, events.Allocated, events.Released, events.Transferred, events.TakenOver)
"""After these the row of a job's machines may be another one."""


@hookimpl
def config_section() -> type[Section]:
    """Return the model of the section `sheets`."""
    return SheetsSection


@hookimpl
def on_event(job: Job, event: events.Event) -> None:
    """Store what the row of the job's machines is to be, and start the process that writes rows.

    The row is that of the present state, not of the event: what is in between is not written.

    Raises:
        TpuxError: earlier rows could not be written.
    """
    if (section := job.section("sheets", SheetsSection)) is None:
        return
    mirror = Mirror(section, job.user)
    if isinstance(event, events.Tick):
        if mirror.waits():
            mirror.write()
        if problem := mirror.new_problem():
            raise TpuxError(f"rows of the spreadsheet wait and are tried again: {problem}")
    elif isinstance(event, _LATER) and _update(mirror, section, job, event.at):
        mirror.write()


def _update(mirror: Mirror, section: SheetsSection, job: Job, at: float) -> bool:
    """Store the rows that have changed; return whether there are any."""
    machines, state, zone = None, "deleted", ""
    with suppress(UsageError):  # it was deleted
        info = api.job(job.id or 0)
        machines, state, zone = info.machines, info.state, info.zone or ""
        if info.allocation is None:
            machines = None  # they are only requested
    job_cell = f"{int(job.id or 0)} {job.name}"
    common = {"user": job.user, "job": job_cell, "updated": strftime("%Y-%m-%d %H:%M:%S", localtime(at))}
    before = mirror.held(job.unique_id)
    if before and before != machines:
        mirror.put(before, {**common, "status": section.free, "state": ""}, released=True)
    if machines:
        type_ = job.tpu.accelerator
        more = {"type": type_ if isinstance(type_, str) else "", "zone": zone, "state": state}
        mirror.put(machines, {**common, **more, "status": section.in_use}, released=False)
    if before != machines:
        mirror.hold(job.unique_id, machines)
    return bool(before or machines)
