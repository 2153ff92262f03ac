"""The life of a job, a step at a time: a stop, a crash, an upgrade and a preemption are one path.

Each state has one handler. It reads what is on disk and what is true outside, does the one next thing,
writes it down, and says in how many seconds the next step is worth taking.
docs/architecture.md draws the states.
"""

from __future__ import annotations

from collections.abc import Callable

from tpux.lifecycle.allocation import pending, provisioning
from tpux.lifecycle.context import JobContext
from tpux.lifecycle.release import ended
from tpux.lifecycle.requests import heed
from tpux.lifecycle.restart import recovering
from tpux.lifecycle.run import running
from tpux.lifecycle.setup import setting_up
from tpux.lifecycle.stop import stopping
from tpux.plugin.events import JobState

__all__ = ["JobContext", "advance"]

_HANDLERS: dict[JobState, Callable[[JobContext], float | None]] = {
    "pending": pending,
    "provisioning": provisioning,
    "setting-up": setting_up,
    "running": running,
    "recovering": recovering,
    "stopping": stopping,
    "stopped": ended,
    "succeeded": ended,
    "failed": ended,
}


def advance(context: JobContext) -> float | None:
    """Take one step of a job's life.

    Args:
        context: the job, its lock held.

    Returns:
        In how many seconds to look again; None where nothing is left to do.

    Raises:
        TpuxError, OSError: the step could not be taken; the job is as it was, and it can be tried again.
    """
    try:
        heed(context)
        return _HANDLERS[context.state.state](context)
    except BaseException:
        # A generator that raised has ended, and asked again it would look as if it had come to its end.
        context.forget()
        raise
