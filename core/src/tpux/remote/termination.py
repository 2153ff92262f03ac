"""End a job's programs on all workers: SIGTERM, SIGKILL after `command.grace_period`, and what cannot be ended.

The environment's own steps come first: a container outlives its client.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tpux.errors import TpuxError
from tpux.model.failures import ENDED_BY_TPUX
from tpux.model.machines import Worker
from tpux.model.steps import Step, Steps
from tpux.remote import process
from tpux.remote.hung import describe_hung, hung_processes
from tpux.remote.process import RemoteProcess, Signal
from tpux.remote.tasks import TaskGroup, WorkerTask, retry_unreachable, run_steps
from tpux.remote.workers import Workers

KILL_TIMEOUT = 10.0
"""Seconds after SIGKILL for which a program is waited for on a machine that is deleted next."""
HANG_TIMEOUT = 120.0
"""Seconds after SIGKILL for which processes are waited for that hang in the kernel."""
CHECK_EVERY = 0.2
"""Seconds between two checks whether a program that was terminated has ended."""


@dataclass(frozen=True)
class EndedRuns:
    """What is ended on one worker.

    Attributes:
        worker: the worker.
        runs: its runs, the command's first.
        stop_steps: of the environment, before the command is ended; None where the command does not run.
        ask: ask first whether the command has ended by itself.
    """

    worker: Worker
    runs: Sequence[RemoteProcess]
    stop_steps: Callable[[], WorkerTask[tuple[Step, ...]]] | None = None
    ask: bool = False


class Termination:
    """The termination of what a job runs, on all its workers. It can be begun again at any time.

    Args:
        workers: the workers of the job.
        since: since when this supervisor, or one that has died, may have been ending the programs, in seconds since the
            epoch; None if none has.
        log: appends a line to the job's log.

    Attributes:
        begun: it has begun, and nothing has been started since.
        since: see above.
        ended_before: whether the command was found to have ended before anything was terminated on a worker, by worker.
        ended_at: when the processes had ended, if output is fetched after that (monotonic).
        report_at: when that is to be reported next (monotonic); None before the first time.
        inspect_at: when the allocator is asked again about workers that do not answer (monotonic).
    """

    def __init__(self, workers: Workers, since: float | None, log: Callable[[str], None]) -> None:
        self._workers = workers
        self._log = log
        self.since = since
        self.discard()

    def discard(self) -> None:
        """Stop following what was begun, as after an error: it is begun again. `since` stays."""
        self._tasks: TaskGroup[list[int]] | None = None
        self.begun = False
        self.ended_before: dict[int, bool] = {}
        self.ended_at: float | None = None
        self.report_at: float | None = None
        self.inspect_at = 0.0

    def reset(self) -> None:
        """Return to the beginning: what is started next was not ended by anybody."""
        self.discard()
        self.since = None

    def begin(self, plans: Sequence[EndedRuns], grace: float) -> None:
        """Begin, on each of these workers.

        Args:
            plans: what is ended on each worker.
            grace: `command.grace_period`, in seconds.
        """
        self.begun = True
        if self.since is None:
            self.since = self._workers.clock.now()
        tasks = {plan.worker.index: self._end(plan, grace) for plan in plans}
        self._tasks = TaskGroup(self._workers, tasks, "a step that ends its program")

    def advance(self) -> float | None:
        """Advance on every worker.

        Returns:
            Seconds until the next call; None when all processes have ended.
        """
        return self._tasks.advance() if self._tasks else None

    @property
    def waits_for_unreachable(self) -> bool:
        """True if only workers are left that do not answer."""
        return self._tasks is not None and self._tasks.open <= self._workers.unreachable.keys()

    @property
    def hung(self) -> dict[int, str]:
        """Which processes could not be ended, by worker, for people."""
        found = self._tasks.results.items() if self._tasks else ()
        return {index: _describe_hung(index, pids) for index, pids in sorted(found) if pids}

    def _end(self, plan: EndedRuns, grace: float) -> WorkerTask[list[int]]:
        worker, hung = plan.worker, list[int]()
        if plan.ask:
            command = plan.runs[0]
            self.ended_before[worker.index] = yield from retry_unreachable(
                self._workers, worker, lambda host: process.has_ended(host, command), any_error=True
            )
        for run in plan.runs:
            if plan.stop_steps is not None and run is plan.runs[0] and (steps := (yield from plan.stop_steps())):
                # Recorded first: the environment's own steps end the program.
                yield from _send(self._workers, worker, run, "NONE")
                yield from run_steps(
                    self._workers, worker, _each(steps), log="stop", name=f"stop-{run.attempt}", any_error=True
                )
            hung += yield from end_run(self._workers, worker, run, grace)
        if hung:
            self._log(_describe_hung(worker.index, hung))
        return hung


def end_run(workers: Workers, worker: Worker, run: RemoteProcess, grace: float) -> WorkerTask[list[int]]:
    """End the processes of a run, and wait until they have ended.

    A process that hangs in the kernel, as on a mount whose server does not answer, ends when what it waits for comes,
    and runs no more code then. Whatever else does not end is waited for without a limit: it may use the TPU.

    Args:
        workers: the workers of the job.
        worker: which worker.
        run: the run; may stand for several, see `process.stop`.
        grace: seconds between SIGTERM and SIGKILL.

    Returns:
        The processes that hang.
    """
    clock = workers.clock
    left = yield from _send(workers, worker, run, "TERM")
    deadline = clock.monotonic() + grace
    while left and not (workers.patience.one_try and clock.monotonic() >= deadline + KILL_TIMEOUT):
        yield CHECK_EVERY
        left = yield from _send(workers, worker, run, "KILL" if clock.monotonic() >= deadline else "0")
        if left and clock.monotonic() >= deadline + HANG_TIMEOUT:
            hung = yield from retry_unreachable(workers, worker, lambda host: hung_processes(host, run), any_error=True)
            if len(hung) >= left:
                return hung
    return []


class StackSaver:
    """Saves, on each of these workers, the stacks of a program that is about to be ended because it is silent.

    Args:
        workers: the workers of the job.
        runs: a worker and its run each.
        log: appends a line to the job's log.
    """

    def __init__(
        self, workers: Workers, runs: Mapping[int, tuple[Worker, RemoteProcess]], log: Callable[[str], None]
    ) -> None:
        def save(worker: Worker, run: RemoteProcess) -> WorkerTask[int]:
            yield from ()
            try:
                return process.save_stacks(workers.host(worker), run)
            except TpuxError as error:  # one try: the program must be ended, with or without its stacks
                log(f"worker {worker.index}: its stacks could not be saved: {error.message}")
                return 0

        tasks = {index: save(worker, run) for index, (worker, run) in runs.items()}
        self._tasks = TaskGroup(workers, tasks, "a step that saves stacks")

    def advance(self) -> float | None:
        """Continue; return the seconds until the next call, None when it is done."""
        return self._tasks.advance()

    @property
    def saved(self) -> int:
        """The number of processes whose stacks were saved so far."""
        return sum(self._tasks.results.values())


def _send(workers: Workers, worker: Worker, run: RemoteProcess, signal: Signal) -> WorkerTask[int]:
    return retry_unreachable(
        workers, worker, lambda host: process.stop(host, run, signal=signal, reason=ENDED_BY_TPUX), any_error=True
    )


def _describe_hung(worker: int, pids: list[int]) -> str:
    return f"worker {worker}: {describe_hung(pids)}"


def _each(steps: tuple[Step, ...]) -> Steps:
    for step in steps:  # noqa: UP028  (a step's result is sent, which `yield from` a tuple does not accept)
        yield step
