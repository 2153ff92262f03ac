"""Set up the workers: modules in the config's order, workers in parallel, then begin the next attempt."""

from __future__ import annotations

from tpux.errors import HostUnreachableError, TpuxError
from tpux.lifecycle.allocator_calls import PENDING_POLL
from tpux.lifecycle.attempt import new_attempt
from tpux.lifecycle.checkpoint import CheckpointSearch
from tpux.lifecycle.decision import fail_and_release, record_failure
from tpux.lifecycle.loss import VERDICT_POLL, lost_worker_failure, unreachable_report
from tpux.lifecycle.machines import inspect_machines
from tpux.lifecycle.programs import command_workers
from tpux.lifecycle.resume_point import Outputs, ResumePoint, choose
from tpux.lifecycle.stop import stopped, terminate
from tpux.lifecycle.turn import Next, Phase, Turn
from tpux.lifecycle.worker_setup import Peers, Progress, set_up_worker
from tpux.model.events import StateChanged
from tpux.model.failures import Failure
from tpux.model.job import is_url
from tpux.model.machines import Worker
from tpux.model.steps import Result
from tpux.remote.calls import WorkerCalls
from tpux.remote.tasks import TaskGroup


class SettingUp(Phase):
    """The setup of all workers in one round; on the first worker also the search for what to resume from."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Begin again; the steps that were done are not done again: each has its name."""
        self._tasks: TaskGroup[Failure | Outputs | None] | None = None
        self._modules: list[str] = []
        self._progress: dict[int, Progress] = {}
        self._commanded: list[Worker] = []
        self._search: CheckpointSearch | None = None
        self._inspect_at = 0.0

    def step(self, turn: Turn) -> Next:
        """Set up all workers; once they are ready, write the next attempt and enter `running`."""
        if turn.state.attempt_ready:
            return _run_attempt(turn)  # the last supervisor died after writing the attempt
        tasks = self._tasks = self._tasks or self._begin(turn)
        failure = _failure(turn, tasks)
        delay = tasks.advance() if failure is None else None
        failure = failure or _failure(turn, tasks)
        delay = delay if failure is None else None  # the setup of the others is terminated, and not advanced
        if problem := unreachable_report(turn):
            turn.waiting(problem)
        problematic = (failure or turn.workers.unreachable) and not turn.termination.begun
        if problematic and (step := self._check_machines(turn, tasks, delay)) is not None:
            return step
        if failure:
            delay = terminate(turn)
            last = _failure(turn, tasks) or failure  # with the error of the last login
            return record_failure(turn, last) if delay is None else Next(after=delay)
        if delay is not None:
            if not problem and (news := self._slow_module()):
                turn.waiting(news)
            return Next(after=delay)
        if turn.state.setup_only:
            return stopped(turn, "workers set up")
        if self._search is not None and (step := _search_storage(turn, self._search)) is not None:
            return step
        turn.write(new_attempt(turn, *self._resume_point(turn, tasks)))
        return _run_attempt(turn)

    def _begin(self, turn: Turn) -> TaskGroup[Failure | Outputs | None]:
        only = turn.state.setup_only
        numbers, names = (only.workers, only.only) if only else ((), ())
        workers = [worker for worker in turn.machines.workers if not numbers or worker.index in numbers]
        updated = turn.state.modules_to_set_up
        names = names if updated is None else updated
        modules = [name for name in turn.job.modules if (not names and updated is None) or name in names]
        self._commanded = [] if only is not None else command_workers(turn)
        peers = Peers(turn, self._commanded)
        self._modules, self._progress = modules, {worker.index: Progress() for worker in workers}
        tasks = {one.index: set_up_worker(turn, one, modules, peers, self._progress[one.index]) for one in workers}
        urls = [directory for directory in turn.state.outputs[::-1] if is_url(directory)]
        if urls and only is None and not turn.state.from_scratch:
            self._search = CheckpointSearch(urls)
        if modules:
            turn.waiting(f"setting up {', '.join(modules)} on {len(workers)} worker(s)")
        return TaskGroup(turn.workers, tasks, "a step of its set-up")

    def _check_machines(
        self, turn: Turn, tasks: TaskGroup[Failure | Outputs | None], delay: float | None
    ) -> Next | None:
        """Ask the allocator about the machines, and a lost worker once more; None: they are not what delays the setup.

        Args:
            turn: the step.
            tasks: the setup of each worker.
            delay: seconds until the setup is continued; None if it is done, or has failed.
        """
        now, lost = turn.clock.monotonic(), min(tasks.unreachable, default=None)
        if delay is not None and now < self._inspect_at:
            return None  # the steps of the other workers are not to wait for the answer each time
        if (machines := inspect_machines(turn)) is None:
            return Next(after=PENDING_POLL) if delay is None else None
        self._inspect_at = now + VERDICT_POLL
        if machines.failure:
            return record_failure(turn, machines.failure)
        if machines.undecided or (machines.status.state == "unknown" and lost is not None):
            return Next(after=machines.status.poll_after if delay is None else delay)
        if lost is not None and _answers(turn, lost):
            self.restart()
            return Next()
        return None

    def _slow_module(self) -> str:
        """Return how far the first module is that takes long on a worker; "" if none does."""
        at = {index: (one.module, one.step) for index, one in self._progress.items() if one.step}
        slow = min(at, key=lambda index: (self._modules.index(at[index][0]), index), default=None)
        if slow is None:
            return ""
        module, step = at[slow]
        ended = self._tasks.results.keys() if self._tasks else set()
        later = {*self._modules[self._modules.index(module) + 1 :]}
        ready = sum(index in ended or one.module in later for index, one in self._progress.items())
        return f"{module}: ready on {ready} of {len(self._progress)} workers (worker {slow}: {step})"

    def _resume_point(self, turn: Turn, tasks: TaskGroup[Failure | Outputs | None]) -> ResumePoint:
        """Return the newest output of an earlier attempt that all its workers have, or that is in storage."""
        results = [tasks.results[worker.index] for worker in self._commanded]
        outputs = [result for result in results if isinstance(result, Outputs)]
        return choose(outputs, self._search.found if self._search else None, turn.state.outputs)


def _failure(turn: Turn, tasks: TaskGroup[Failure | Outputs | None]) -> Failure | None:
    """Return why the first worker that could not be set up failed: it was unreachable for too long, or a module."""
    if tasks.unreachable:
        return lost_worker_failure(turn, min(tasks.unreachable))
    return next((result for _, result in sorted(tasks.results.items()) if isinstance(result, Failure)), None)


def _search_storage(turn: Turn, search: CheckpointSearch) -> Next | None:
    """Search for checkpoints in output directories that are URLs; None: it is known which has one."""
    delay = search.advance(turn)
    if search.failure is not None:
        return fail_and_release(turn, search.failure)
    if delay is not None and search.why(turn.clock.monotonic()):
        turn.waiting(search.why(turn.clock.monotonic()))
    return None if delay is None else Next(after=delay)


def _answers(turn: Turn, index: int) -> bool:
    """Try one more login on a worker that was unreachable; return whether it answers."""
    calls: WorkerCalls[Result] = turn.workers.calls("a login")
    worker = turn.machines.workers[index]
    answer = calls.make_all({index: worker}, lambda _, one: turn.workers.host(one).run("true"))[index]
    if isinstance(answer, HostUnreachableError):
        turn.workers.mark_unreachable(worker, answer, 0.0)
        return False
    if isinstance(answer, TpuxError):
        raise answer
    turn.workers.mark_reachable(worker)
    return True


def _run_attempt(turn: Turn) -> Next:
    return Next(StateChanged(to="running", why=f"attempt {turn.state.attempt}"))
