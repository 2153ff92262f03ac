"""What a pending job waits for before it requests machines: jobs that must have succeeded, and its turn in a group."""

from __future__ import annotations

from tpux.errors import TpuxError, UsageError
from tpux.lifecycle.turn import Next, Turn
from tpux.model.job import Job
from tpux.store import Store, groups, ids, pause

POLL = 2.0
"""Seconds between two looks at the other jobs, for the first of those that wait."""
LONGEST_POLL = 60.0


def wait_for_jobs(turn: Turn) -> Next | None:
    """Return that the job waits for other jobs, which `why` then says; None if it may start.

    A job that holds machines, or takes over those of another one, uses them now: only `job.after` delays it. It counts
    in its group.
    """
    state, section = turn.state, turn.job.job
    if state.setup_only:
        return None
    at_once = state.requested or bool(state.takes_over)
    if not at_once and (paused := pause.current(turn.store, turn.job.sections, turn.clock.now())):
        hint = f"raise it for this job: tpux stop {turn.number}; tpux resume {turn.number} {paused.key}=MORE"
        turn.waiting(paused.why, hint=hint)
        return Next(after=POLL)
    for job in section.after:
        if (found := _reason(turn, job)) is not None:
            if section.group is not None:
                groups.leave(turn.store, section.group.name, state.id)
            turn.waiting(found[0], hint=found[1])
            return Next(after=POLL)
    if (group := section.group) is None:
        return None
    ahead = groups.enter(turn.store, group.name, group.max_running, state.id, at_once=at_once, priority=group.priority)
    if ahead is None:
        return None
    turn.waiting(f"waits for its turn in the group {group.name}, of which {group.max_running} may run")
    return Next(after=min(LONGEST_POLL, POLL * (1 + ahead)))


def _reason(turn: Turn, job: int) -> tuple[str, str] | None:
    """Return why another job has not succeeded and what the user can do about it; None if it has."""
    record = turn.store.record(ids.normalize(str(job)))
    if not record.directory.is_dir():
        if turn.store.succeeded(record.id):
            return None
        hint = f"start it without: tpux stop {turn.number}; tpux resume {turn.number} job.after=[]"
        return f"waits for job {job}, which was deleted", hint
    try:
        state = record.refresh()
    except TpuxError as error:
        hint = error.hint or f"see what is wrong: tpux show {job}"
        return f"waits for job {job}, which cannot be read", hint
    if state.state == "succeeded":
        return None
    if state.ended:
        ended = "has failed" if state.state == "failed" else "was stopped"
        return f"waits for job {job} to succeed, which {ended}", f"start it again: tpux resume {job}"
    return f"waits for job {job} to succeed", ""


def require_other_jobs(store: Store, job: Job) -> None:
    """Refuse a job that is to start after itself, or after jobs that do not exist.

    Raises:
        UsageError: it is.
    """
    for other in job.job.after:
        if other == int(job.id):
            raise UsageError(f"job.after: job {other} cannot wait for itself")
        if not store.succeeded(ids.normalize(str(other))):
            store.find(str(other))
