"""Set up the workers: modules in the config's order, workers in parallel, then begin the next attempt."""

from __future__ import annotations

from tpux.errors import HostUnreachableError, TpuxError
from tpux.lifecycle.allocation import inspect_machines
from tpux.lifecycle.attempt import command_workers, new_attempt
from tpux.lifecycle.context import JobContext, Next
from tpux.lifecycle.failure import fail_and_release, record_failure
from tpux.lifecycle.lost_workers import VERDICT_POLL, lost_worker_failure, unreachable_report
from tpux.lifecycle.resume_point import Outputs, ResumePoint, choose
from tpux.lifecycle.stop import stopped, terminate_processes
from tpux.lifecycle.storage import CheckpointSearch, is_url
from tpux.lifecycle.tasks import TaskGroup
from tpux.lifecycle.worker_setup import Workers, set_up_worker
from tpux.model.events import StateChanged
from tpux.model.failures import Failure
from tpux.model.steps import Result
from tpux.remote.calls import WorkerCalls


def setting_up(context: JobContext) -> Next:
    """Set up all workers; once they are ready, write the next attempt and enter `running`."""
    if context.state.attempt_ready:
        return _run_attempt(context)  # crash recovery: the previous supervisor died after writing the attempt
    if context.setup_run is None:
        context.setup_run = SetupRun(context)
    setup = context.setup_run
    delay = setup.advance()
    if problem := unreachable_report(context):
        context.waiting(problem)
    problematic = (setup.failure or context.connections.unreachable) and not context.terminator
    if problematic and (step := _check_machines(context, setup, delay)) is not None:
        return step
    if setup.failure:  # stop setup on the remaining workers first
        delay = terminate_processes(context)
        return record_failure(context, setup.failure) if delay is None else Next(after=delay)
    if delay is not None:
        return Next(after=delay)
    if context.state.setup_only:
        return stopped(context, "workers set up")
    if setup.search is not None and (step := _search_storage(context, setup.search)) is not None:
        return step
    context.write(new_attempt(context, *setup.resume_point))
    return _run_attempt(context)


def _search_storage(context: JobContext, search: CheckpointSearch) -> Next | None:
    """Search for checkpoints in output directories that are URLs; None: it is known which has one."""
    delay = search.advance()
    if search.failure is not None:
        return fail_and_release(context, search.failure)
    if delay is not None and search.why:
        context.waiting(search.why)
    return None if delay is None else Next(after=delay)


def _check_machines(context: JobContext, setup: SetupRun, delay: float | None) -> Next | None:
    """Ask the allocator about the machines, and a lost worker once more; None: they are not what delays the setup."""
    now, lost = context.clock.monotonic(), setup.lost_worker
    if delay is not None and now < setup.inspect_at:
        return None  # the steps of the other workers are not to wait for the answer each time
    machines = inspect_machines(context)
    setup.inspect_at = now + VERDICT_POLL
    if machines.failure:
        return record_failure(context, machines.failure)
    if machines.undecided or (machines.status.state == "unknown" and lost is not None):
        return Next(after=machines.status.poll_after if delay is None else delay)
    if lost is not None and _answers(context, lost):
        context.setup_run = None  # the next one continues where this one was: each step has its name
        return Next()
    return None


def _answers(context: JobContext, index: int) -> bool:
    """Try one more login on a worker that was unreachable; return whether it answers."""
    calls: WorkerCalls[Result] = context.connections.calls("a login")
    worker = context.allocation.workers[index]
    answer = calls.make_all({index: worker}, lambda _, one: context.connections.host(one).run("true"))[index]
    if isinstance(answer, HostUnreachableError):
        context.connections.mark_unreachable(worker, answer, 0.0)
        return False
    if isinstance(answer, TpuxError):
        raise answer
    context.connections.mark_reachable(worker)
    return True


def _run_attempt(context: JobContext) -> Next:
    return Next(StateChanged(to="running", why=f"attempt {context.state.attempt}"))


class SetupRun:
    """The setup of all workers in one round; on the first worker also the search for what to resume from.

    Attributes:
        search: the search in output directories that are URLs; None if there are none.
        inspect_at: when the allocator is asked again about workers that do not answer (monotonic).
    """

    def __init__(self, context: JobContext) -> None:
        self.inspect_at = 0.0
        self._context = context
        only = context.state.setup_only
        numbers, names = (only.workers, only.only) if only else ((), ())
        workers = [worker for worker in context.allocation.workers if not numbers or worker.index in numbers]
        updated = context.state.modules_to_set_up
        names = names if updated is None else updated
        modules = [name for name in context.job.modules if (not names and updated is None) or name in names]
        self._commanded = [] if only is not None else command_workers(context)
        of_all = Workers(context, self._commanded)
        tasks = {w.index: set_up_worker(context, w, modules, of_all) for w in workers}
        self._tasks = TaskGroup(context, tasks, "a step of its set-up")
        urls = [directory for directory in context.state.outputs[::-1] if is_url(directory)]
        searched = urls and only is None and not context.state.from_scratch
        self.search = CheckpointSearch(context, urls, context.job.command.checkpoint) if searched else None
        if modules:
            context.waiting(f"setting up {', '.join(modules)} on {len(workers)} worker(s)")

    @property
    def lost_worker(self) -> int | None:
        """The first worker that was unreachable for `watch.lost_after`."""
        return min(self._tasks.unreachable, default=None)

    @property
    def failure(self) -> Failure | None:
        """Why the first worker that could not be set up failed."""
        if self.lost_worker is not None:
            return lost_worker_failure(self._context, self.lost_worker)
        failures = (result for _, result in sorted(self._tasks.results.items()) if isinstance(result, Failure))
        return next(failures, None)

    @property
    def resume_point(self) -> ResumePoint:
        """What the next attempt resumes from: the newest output that all its workers have, or that is in storage."""
        results = [self._tasks.results[worker.index] for worker in self._commanded]
        outputs = [result for result in results if isinstance(result, Outputs)]
        return choose(outputs, self.search.found if self.search else None, self._context.state.outputs)

    def advance(self) -> float | None:
        """Advance the setup on every worker.

        Returns:
            Seconds until the next call; None when all is done, or one worker has failed.
        """
        if self.failure:
            return None  # the setup of the remaining workers is terminated, and not advanced
        delay = self._tasks.advance()
        return None if self.failure else delay
