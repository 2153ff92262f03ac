"""Restart a job after a failure: repair or replace the machines, and wait for the backoff to pass."""

from __future__ import annotations

from tpux.errors import HostUnreachableError, TpuxError
from tpux.lifecycle import policy
from tpux.lifecycle.allocation import inspect_machines, release_machines, request_machines
from tpux.lifecycle.check import describe_failure
from tpux.lifecycle.context import JobContext, Next
from tpux.lifecycle.failure import describe_slices, record_failure
from tpux.lifecycle.lost_workers import VERDICT_POLL
from tpux.lifecycle.stop import SOLVE_STEPS, present_workers, terminate_processes
from tpux.lifecycle.tasks import TaskGroup, WorkerTask, run_steps
from tpux.model.events import StateChanged
from tpux.model.failures import Failure
from tpux.model.machines import Worker
from tpux.plugin import spec


class SolverRun:
    """The solvers' steps on all workers before the next attempt.

    Attributes:
        tasks: what runs on each worker; returns which solver failed, "" if none did.
        inspect_at: when the allocator is asked again about workers that do not answer (monotonic).
    """

    def __init__(self, context: JobContext, failure: Failure) -> None:
        tasks = {worker.index: _solve(context, worker, failure) for worker in present_workers(context)}
        self.tasks = TaskGroup(context, tasks, "a step of its repair")
        self.inspect_at = 0.0


def recovering(context: JobContext) -> Next:
    """Terminate what is left of the attempt, repair or release the machines, wait, and start again."""
    state = context.state
    action, failure = state.action, state.failure
    kept = state.surviving
    lost = action.reapply and failure is not None and failure.kind in policy.MACHINE_FAILURES and kept is None
    if context.state.allocation is not None and not lost and (delay := terminate_processes(context)) is not None:
        return Next(after=delay)
    if action.solve and failure is not None and (step := _repair(context, failure)) is not None:
        return step
    if (left := context.deadlines.left(state.backoff_until, state.backoff_until - state.since)) > 0:
        return Next(after=left)
    if kept is not None:
        context.reset()
        slices = describe_slices(state.lost_slices)
        return Next(StateChanged(to="provisioning", why=f"replacing {slices}; {len(kept.workers)} worker(s) are kept"))
    replace = action.reapply or context.state.allocation is None
    if replace and context.state.requested and (delay := release_machines(context)) is not None:
        return Next(after=delay)
    context.reset()
    if context.state.allocation is None:
        return request_machines(context)
    return Next(StateChanged(to="setting-up", why="setting up the workers"))


def _repair(context: JobContext, failure: Failure) -> Next | None:
    """Advance the solvers' steps on all workers; None: they are done. Lost machines are replaced instead."""
    run = context.repair = context.repair or SolverRun(context, failure)
    if (delay := run.tasks.advance()) is None:
        if problems := list(filter(None, run.tasks.results.values())):
            context.waiting(problems[0])
        return None
    now = context.clock.monotonic()
    if context.connections.unreachable and now >= run.inspect_at:
        run.inspect_at = now + VERDICT_POLL  # the steps of the other workers are not to wait for the answer each time
        if (lost := inspect_machines(context).failure) is not None:
            return record_failure(context, lost)
    return Next(after=delay)


def _solve(context: JobContext, worker: Worker, failure: Failure) -> WorkerTask[str]:
    """Run the solvers' steps on a worker; return which solver failed, "" if none did."""
    job, problem = context.job, ""
    for name, steps in context.plugins.call_each(job, spec.solve, job=job, config=None, failure=failure, worker=worker):
        try:
            if isinstance(steps, TpuxError):
                raise steps
            step_name = f"{SOLVE_STEPS}{name}-{context.state.attempt}"
            failed = yield from run_steps(context, worker, steps, log="solve", name=step_name)
            if failed is not None:
                problem = f"worker {worker.index}: solver {name}: {describe_failure(*failed)}"
                context.log("tpu.log", problem)
        except HostUnreachableError:
            raise
        except TpuxError as error:
            if not context.is_last_try(error):
                raise
            problem = f"worker {worker.index}: {error.message}; continuing without it"
            context.log("tpu.log", problem)
    return problem
