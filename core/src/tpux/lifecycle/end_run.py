"""End the processes of a run: SIGTERM, SIGKILL after `command.grace_period`, and at last those that cannot be ended."""

from __future__ import annotations

from tpux.lifecycle.context import JobContext
from tpux.lifecycle.endings import ENDED_BY_TPUX
from tpux.lifecycle.failure import deletes_machines
from tpux.lifecycle.tasks import WorkerTask, retry_unreachable
from tpux.model.machines import Worker
from tpux.remote import process
from tpux.remote.hung import hung_processes
from tpux.remote.process import RemoteProcess, Signal

KILL_TIMEOUT = 10.0
"""Seconds after SIGKILL for which a program is waited for on a machine that is deleted next."""
HANG_TIMEOUT = 120.0
"""Seconds after SIGKILL for which processes are waited for that hang in the kernel."""
CHECK_EVERY = 0.2
"""Seconds between two checks whether a program that was terminated has ended."""


def end_run(context: JobContext, worker: Worker, run: RemoteProcess) -> WorkerTask[list[int]]:
    """End the processes of a run, and wait until they have ended.

    A process that hangs in the kernel, as on a mount whose server does not answer, ends when what it waits for comes,
    and runs no more code then. Whatever else does not end is waited for without a limit: it may use the TPU.

    Args:
        context: the job.
        worker: which worker.
        run: the run; may stand for several, see `process.stop`.

    Returns:
        The processes that hang.
    """

    def send(signal: Signal) -> WorkerTask[int]:
        return _send(context, worker, run, signal)

    left = yield from send("TERM")
    deadline = context.clock.monotonic() + context.job.command.grace_period
    while left and not (deletes_machines(context) and context.clock.monotonic() >= deadline + KILL_TIMEOUT):
        yield CHECK_EVERY
        left = yield from send("KILL" if context.clock.monotonic() >= deadline else "0")
        if left and context.clock.monotonic() >= deadline + HANG_TIMEOUT:
            hung = yield from retry_unreachable(context, worker, lambda host: hung_processes(host, run), any_error=True)
            if len(hung) >= left:
                return hung
    return []


def mark_run(context: JobContext, worker: Worker, run: RemoteProcess) -> WorkerTask[int]:
    """Record on the worker, unless the run has ended there, that tpux ends it: an environment's own steps do next."""
    return _send(context, worker, run, "NONE")


def _send(context: JobContext, worker: Worker, run: RemoteProcess, signal: Signal) -> WorkerTask[int]:
    return retry_unreachable(
        context, worker, lambda host: process.stop(host, run, signal=signal, reason=ENDED_BY_TPUX), any_error=True
    )
