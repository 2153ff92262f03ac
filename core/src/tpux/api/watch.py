"""Wait for a job from outside its supervisor: the one loop of all commands and functions that do."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from tpux.console import NOTICE_AFTER
from tpux.errors import TpuxError
from tpux.supervisor import client

if TYPE_CHECKING:
    from tpux.store import Store
    from tpux.store.record import Record
    from tpux.store.state import State

POLL_EVERY = 0.05
"""Seconds between two looks at a job's files; the first few are closer together."""
ENSURE_EVERY = 2.0
"""Seconds between two checks that a supervisor is running."""

Say = Callable[[str], None]


def watch(
    store: Store, record: Record, *, timeout: float | None = None, warn: Say | None = None, notice: Say | None = None
) -> Iterator[State]:
    """Yield a job's state at once and then every 0.1 s, and keep a supervisor running meanwhile.

    It ends when the job was deleted, and after `timeout`. A caller leaves it when it has seen what it waits for.

    Args:
        store: the store of the job.
        record: the job.
        timeout: seconds; None for no limit.
        warn: called once if the supervisor was stopped or does not move, so that nothing happens until a user acts.
        notice: called with the job's state and reason after 2 s, and when they change.
    """
    start = checked = time.monotonic()
    warned, said, pause = False, "", POLL_EVERY / 8
    while record.directory.is_dir():
        try:
            state = record.refresh()
        except (TpuxError, OSError):
            if record.directory.is_dir():
                raise
            return  # it was deleted just now
        yield state
        now = time.monotonic()
        if timeout is not None and now - start > timeout:
            return
        if notice is not None and now - start >= NOTICE_AFTER and (text := _waits_for(store, state)) != said:
            notice(said := text)
        if now - checked >= ENSURE_EVERY:
            checked, was_warned = now, warned
            stopped = "the supervisor was stopped; jobs continue after: tpux supervisor start"
            problem = client.current_report(store).stuck if client.ensure_running(store) else stopped
            warned = bool(problem)
            if warned and not was_warned and warn is not None:
                warn(problem)
        time.sleep(pause)
        pause = min(pause * 1.5, POLL_EVERY)


def _waits_for(store: Store, state: State) -> str:
    report = client.current_report(store)
    state = report.applied_to(state)
    text = f"waiting for job {int(state.id)}: {state.state}" + (f": {state.why}" if state.why else "")
    if report.installation and state.id in report.blocked:  # only a new process ends what blocks the job
        text += f"; the installation on the disk cannot be used: {report.installation}"
    return text
