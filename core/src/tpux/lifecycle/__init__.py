"""The life of a job, one step at a time. A stop, a crash, an upgrade and a preemption take the same path.

Each state has one handler. It reads the disk and the outside world, does the one next thing, and returns what
follows: the change of state, and the seconds until the next step. Whatever must survive a crash is written before
the action that it announces. docs/architecture.md draws the states.
"""

from __future__ import annotations

from collections.abc import Callable

from tpux.errors import TpuxError
from tpux.lifecycle.allocation import ended, provisioning, request_machines
from tpux.lifecycle.context import JobContext, Next
from tpux.lifecycle.failure import release_time
from tpux.lifecycle.requests import apply_request, pending_request
from tpux.lifecycle.restart import recovering
from tpux.lifecycle.run import running
from tpux.lifecycle.setup import setting_up
from tpux.lifecycle.stop import stopping
from tpux.plugin.events import Failed, JobState, StateChanged
from tpux.plugin.failures import Failure
from tpux.remote.worker_calls import StepInterruptedError
from tpux.store import requests

__all__ = ["JobContext", "StepInterruptedError", "advance", "fail"]

RELEASE_DELAY_UNREADABLE = 3600.0
"""Seconds that the machines of a job are kept whose config can no longer be read."""

_HANDLERS: dict[JobState, Callable[[JobContext], Next]] = {
    "pending": request_machines,
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
    """Take one step of a job: apply a user's request, or else call the handler of the job's state.

    Args:
        context: the job, its lock held.

    Returns:
        Seconds until the next step; None when nothing is left to do.

    Raises:
        TpuxError, OSError: the step could not be taken. The job is as it was, and the step can be taken again.
        StepInterruptedError: the same, after `Connections.interrupt`.
    """
    context.connections.begin_step()
    try:
        context.write_changed_workers()
        if (request := pending_request(context)) is not None:
            step = apply_request(context, request)
        else:
            step = _HANDLERS[context.state.state](context)
        if step.change is not None:
            context.enter(step.change)
        if request is not None:
            context.write(request)
            requests.remove_applied(context.record)
    except BaseException:
        context.restart_step()  # a generator that raised is exhausted, and would look as if it had completed
        raise
    finally:
        context.save_observations()
    return step.after


def fail(context: JobContext, failure: Failure) -> None:
    """Fail a job whose steps keep raising errors, whatever its rule says.

    Raises:
        TpuxError, OSError: it could not be written.
    """
    try:
        release_at = release_time(context, "failed")
    except TpuxError:  # the config cannot be read: neither can what it says about releasing machines that cost money
        release_at = context.clock.now() + RELEASE_DELAY_UNREADABLE
    context.write(Failed(failure=failure))
    context.write(StateChanged(to="failed", why=failure.evidence, release_at=release_at))
