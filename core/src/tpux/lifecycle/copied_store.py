"""Drop what the jobs of a copied store claim: their machines and programs belong to the jobs of the original."""

from __future__ import annotations

from collections.abc import Callable
from secrets import token_hex

from tpux.clock import Clock
from tpux.errors import TpuxError
from tpux.lifecycle.errors import ABANDONED_CALLS
from tpux.model.events import ClaimsDropped
from tpux.store import Store, offsets, requests
from tpux.store.record import UNANSWERED, Record


def become_copy(store: Store, clock: Clock, note: Callable[[str], None]) -> None:
    """Make the copy of a store a separate store, which has no claim to the machines of the original.

    Args:
        store: the copy, which no supervisor drives.
        clock: the current time.
        note: called with what a job no longer claims, and with which jobs cannot be read.

    Raises:
        TpuxError: the lock of the store or of a job is held.
        OSError: a file cannot be read or written. The command can be repeated.
    """

    def drop_claims() -> None:
        for user in store.users():
            for record in store.records(user):
                try:
                    record.refresh()
                except TpuxError as error:  # nobody drives it; repaired, it has labels that its machines do not have
                    note(f"warning: job {int(record.id)} cannot be read: {error}")
                    continue
                _drop_claims(record, clock, note)

    store.become_copy(drop_claims)


def _drop_claims(record: Record, clock: Clock, note: Callable[[str], None]) -> None:
    """Drop the claims of one job; a crash at any point leaves what can be dropped again.

    Raises:
        TpuxError: its lock is held.
    """
    if not record.acquire():
        raise TpuxError("another process drives the job", where=f"job {int(record.id)}", hint="tpux supervisor stop")
    try:
        requests.drop(record)
        state = record.state
        if state.requested:
            note(f"job {int(record.id)} no longer claims its machines: {record.describe_machines()}")
        elif not state.ended:
            note(f"job {int(record.id)} is stopped here")
        for mark in (record.directory / UNANSWERED, record.directory / ABANDONED_CALLS):
            mark.unlink(missing_ok=True)
        record.write(ClaimsDropped(token=token_hex(2)), clock.now())
        offsets.skip_all(record)
    finally:
        record.lock.release()
