"""Restart a job after a failure: repair the machines, wait for the backoff to pass, and replace them if need be."""

from __future__ import annotations

from tpux.errors import HostUnreachableError, TpuxError
from tpux.lifecycle import policy
from tpux.lifecycle.decision import record_failure
from tpux.lifecycle.loss import VERDICT_POLL
from tpux.lifecycle.machines import inspect_machines, release_machines, request_machines
from tpux.lifecycle.stop import SOLVE_STEPS, terminate
from tpux.lifecycle.turn import Next, Phase, Turn
from tpux.model.events import StateChanged
from tpux.model.failures import Failure
from tpux.model.machines import Worker
from tpux.plugin import spec
from tpux.remote.tasks import TaskGroup, WorkerTask, describe_failure, run_steps


class Recovering(Phase):
    """The way from a failure to the next attempt: terminate what is left, repair, wait, release, and start again."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Begin again, with the termination."""
        self._repair: TaskGroup[str] | None = None
        self._inspect_at = 0.0

    def step(self, turn: Turn) -> Next:
        """Terminate what is left of the attempt, repair the machines, wait, release them or not, and start again."""
        state = turn.state
        action, failure = state.action, state.failure
        lost = action.reapply and failure is not None and failure.kind in policy.MACHINE_FAILURES
        may_run = self._repair is None and state.allocation is not None and not lost
        if may_run and (delay := terminate(turn)) is not None:
            return Next(after=delay)
        if action.solve and failure is not None and (step := self._solve(turn, failure)) is not None:
            return step
        if (left := turn.deadlines.left(state.backoff_until, state.backoff_until - state.since)) > 0:
            return Next(after=left)
        replace = action.reapply or state.allocation is None
        if replace and state.requested and (delay := release_machines(turn)) is not None:
            return Next(after=delay)
        turn.workers.reset()
        if turn.state.allocation is None:
            return request_machines(turn)
        return Next(StateChanged(to="setting-up", why="setting up the workers"))

    def _solve(self, turn: Turn, failure: Failure) -> Next | None:
        """Advance the solvers' steps on all workers; None: they are done. Lost machines are replaced instead."""
        if self._repair is None:
            turn.termination.discard()  # a stop has to terminate what begins now
            tasks = {worker.index: _solve_worker(turn, worker, failure) for worker in turn.machines.workers}
            self._repair = TaskGroup(turn.workers, tasks, "a step of its repair")
        if (delay := self._repair.advance()) is None:
            if problems := list(filter(None, self._repair.results.values())):
                turn.waiting(problems[0])
            return None
        now = turn.clock.monotonic()
        if turn.workers.unreachable and now >= self._inspect_at:
            if (machines := inspect_machines(turn)) is None:
                return Next(after=delay)
            self._inspect_at = now + VERDICT_POLL
            if machines.failure is not None:
                return record_failure(turn, machines.failure)
        return Next(after=delay)


def _solve_worker(turn: Turn, worker: Worker, failure: Failure) -> WorkerTask[str]:
    """Run the solvers' steps on a worker; return which solver failed, "" if none did."""
    job, problem = turn.job, ""
    for name, steps in turn.plugins.call_each(job, spec.solve, job=job, config=None, failure=failure, worker=worker):
        try:
            if isinstance(steps, TpuxError):
                raise steps
            step_name = f"{SOLVE_STEPS}{name}-{turn.state.attempt}"
            failed = yield from run_steps(turn.workers, worker, steps, log="solve", name=step_name)
            if failed is not None:
                problem = f"worker {worker.index}: solver {name}: {describe_failure(*failed)}"
                turn.log(problem)
        except HostUnreachableError:
            raise
        except TpuxError as error:
            if not turn.errors.is_last_try(error):
                raise
            problem = f"worker {worker.index}: {error.message}; continuing without it"
            turn.log(problem)
    return problem
