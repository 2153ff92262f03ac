"""Take over the machines of a job that has ended: `tpux run CONFIG --on JOB`.

Each of the two jobs writes its own events, and reads the other's:

| event | of | from then on |
|---|---|---|
| `created`, with `takes_over` | the taker | it requests the machines of the giver |
| `request-accepted`, with `agreed` | the giver | it does nothing with them, and waits for the taker |
| `taken-over` | the taker | it holds them, and has to release them; its allocator changes labels and leases |
| `allocated` | the taker | their labels name it |
| `transferred` | the giver | it holds none |

Only `taken-over` changes who holds the machines. The taker writes it while the giver waits; the giver stops waiting
only for what cannot be taken back: the taker has the machines, or has ended, or was deleted.
"""

from __future__ import annotations

import os
from secrets import token_hex
from typing import TYPE_CHECKING

from tpux.errors import UsageError
from tpux.lifecycle.decision import record_failure
from tpux.lifecycle.open import OpenedJob, differences_of_machines, open_job, owner_labels
from tpux.lifecycle.turn import Next, Turn
from tpux.model.events import RequestAccepted, TakenOver, Transferred
from tpux.model.failures import Failure
from tpux.store import requests
from tpux.store.record import Record
from tpux.store.state import State

if TYPE_CHECKING:
    from tpux.model.job import Job
    from tpux.plugin.manager import Plugins
    from tpux.store import Store

POLL = 0.5
"""Seconds between two looks of the taker at the giver."""
CONFIRM_POLL = 2.0
"""Seconds between two looks of the giver, which nobody waits for."""


def refusal(giver: State, taker: str = "") -> str:
    """Return why a job's machines cannot be taken over now; "" if they can.

    Args:
        giver: the job.
        taker: the job that wants them; "" if it does not exist yet.
    """
    job = f"job {int(giver.id)}"
    if not giver.ended:
        return f"{job} is {giver.state}"
    if not giver.requested or giver.machines is None:
        return f"{job} holds no machines"
    if giver.transfer_to not in {"", taker}:
        return f"job {int(giver.transfer_to)} is taking over the machines of {job}"
    if giver.releasing or giver.last_request.get("action") == "delete":
        return f"the machines of {job} are being released"
    return ""


def open_giver(store: Store, record: Record, plugins: Plugins) -> OpenedJob:
    """Open the job whose machines a new one is to take over.

    Raises:
        UsageError: it cannot give them now.
        TpuxError: its config cannot be read, or a plugin that it needs is not installed.
    """
    job = int(record.id)
    problem = refusal(record.refresh())
    if not problem and not requests.has_finished(record):
        problem = f"job {job} is about to start again"
    if problem:
        hint = f"stop it first: tpux stop {job}" if not record.state.ended else "without --on the job gets its own"
        raise UsageError(f"no machines to take over: {problem}", hint=hint)
    return open_job(store, record, plugins, environ=os.environ)


def require_same_machines(giver: OpenedJob, taker: Job) -> None:
    """Refuse a config that describes other machines than those that the job would take over.

    Raises:
        UsageError: it does, or the allocator cannot transfer machines.
    """
    job, allocator = int(giver.job.id), giver.config.allocator
    if changed := differences_of_machines(giver.job, taker, allocator):
        raise UsageError(
            f"the machines of job {job} are other ones than the config describes: {', '.join(changed)}",
            hint=f"give these keys the values that job {job} has (tpux show {job}), or run it without --on",
        )
    if not giver.job.tpu.transferable:
        raise UsageError(f"the allocator {allocator} cannot transfer machines to another job", hint="run without --on")


# --- the taker ----------------------------------------------------------------------------------


def take_over(turn: Turn) -> Next:
    """Request the machines of the other job, and hold them once it has agreed."""
    state = turn.state
    record = turn.store.record(state.takes_over)
    if not record.directory.is_dir():
        return _refused(turn, f"job {int(state.takes_over)} was deleted")
    giver = record.refresh()
    if giver.transfer_to == state.id:
        return _hold(turn, giver)
    if not _is_asked(record, state.id):
        if problem := refusal(giver, state.id):
            return _refused(turn, problem)
        requests.write(record, "transfer", to=state.id)
        turn.wake()
    return Next(after=POLL)


def _is_asked(record: Record, taker: str) -> bool:
    return any(request.action == "transfer" and request.to == taker for request in requests.pending(record))


def _hold(turn: Turn, giver: State) -> Next:
    allocation = giver.machines
    assert allocation is not None, "a job without machines does not agree"  # noqa: S101
    labels = owner_labels(turn.store.id, giver.user, giver.id, giver.token)
    turn.workers.replace_machines(turn.record.directory)
    turn.write(
        TakenOver(
            job=giver.id,
            name=giver.request_name,
            allocation=allocation,
            saved_state=giver.saved_state,
            previous_owners=(*giver.previous_owners, labels),
        )
    )
    turn.log(f"taken over from job {int(giver.id)}: {allocation.name}")
    return Next()


def _refused(turn: Turn, problem: str) -> Next:
    hint = "run the config without --on, and it gets machines of its own"
    return record_failure(turn, Failure("config", evidence=f"no machines to take over: {problem}", hint=hint))


def is_unconfirmed(turn: Turn) -> bool:
    """Return whether the job from which this one has taken over machines does not know it yet.

    It must read it here: without this job's record it would take the machines back, which are released.
    """
    state = turn.state
    record = turn.store.record(state.transfer_from)
    return bool(state.transfer_from) and record.directory.is_dir() and record.refresh().transfer_to == state.id


# --- the giver ----------------------------------------------------------------------------------


def is_agreed(turn: Turn, taker: str) -> bool:
    """Return whether another job may take over the machines: it still waits for them, and this job does not need them.

    Args:
        turn: the step of the job that holds them.
        taker: the other job, which reads from this job's state whether it agrees.
    """
    record = turn.store.record(taker)
    if refusal(turn.state, taker) or not record.directory.is_dir():
        return False
    state = record.refresh()
    return state.takes_over == turn.state.id and state.waits_for_takeover


def hand_over(turn: Turn) -> Next:
    """Wait until the other job has the machines with labels of its own, or has ended with or without them."""
    state = turn.state
    record = turn.store.record(state.transfer_to)
    taker = record.refresh() if record.directory.is_dir() else None
    holds = taker is not None and taker.transfer_from == state.id
    # One that was stopped changes the labels only when it is resumed.
    if taker is not None and taker.takes_over == state.id and not (holds and taker.ended):
        turn.waiting(f"job {int(taker.id)} is taking over the machines")
        return Next(after=CONFIRM_POLL)
    if taker is None or not holds:
        turn.write(RequestAccepted(action="transfer", number=0))
        return Next()
    turn.write(Transferred(to=taker.id, token=token_hex(2)))
    turn.log(f"job {int(taker.id)} has taken over the machines")
    turn.reload()
    return Next()
