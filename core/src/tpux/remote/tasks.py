"""Cooperative tasks, one per worker: generators that do one step per call and yield the delay before the next.

The tasks of a group run in parallel. A worker that is unreachable is retried, with growing delays, from the step
where its task was.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Mapping, Set
from dataclasses import dataclass
from typing import Generic, TypeVar

from tpux.backoff import Backoff
from tpux.errors import HostUnreachableError, TpuxError
from tpux.model.host import OpenHost
from tpux.model.machines import Worker
from tpux.model.program_output import step_reason
from tpux.model.steps import Put, Result, Sh, Step
from tpux.remote import disks, process
from tpux.remote.calls import WorkerCalls
from tpux.remote.connections import TransportFailedError
from tpux.remote.markers import marker_path
from tpux.remote.steps import ReplayLog, StepRunner
from tpux.remote.workers import Workers

R = TypeVar("R")
WorkerTask = Generator[float, None, R]
TIME_SLICE = 1.0
"""Seconds that one call gives to steps that end quickly."""
POLL_EVERY = 0.25
"""Seconds between two polls of a step that takes longer."""
WAIT_FOR_ANSWERS = 1.0
"""Real seconds that a step waits for workers; the answers of slower ones are taken by a later step."""
TRANSPORT_TRIES = 8
"""How often a transport's plugin may fail before a worker of these machines has ever answered."""
UNREACHABLE_BACKOFF = Backoff(0.5, 15.0, jitter=0.2)
"""Before a worker that is unreachable is tried again."""


class TaskGroup(Generic[R]):
    """The same task on several workers.

    Args:
        workers: the workers of the job.
        tasks: the task of each worker.
        what: what one of its calls does, for people.

    Attributes:
        results: what the completed tasks returned, by worker.
        unreachable: the last error of each worker that was unreachable for too long, by worker.
    """

    def __init__(self, workers: Workers, tasks: Mapping[int, WorkerTask[R]], what: str) -> None:
        self._workers = workers
        self._open = dict(tasks)
        self._due = dict.fromkeys(tasks, 0.0)
        self._calls: WorkerCalls[float | None] = workers.calls(what)
        self.results: dict[int, R] = {}
        self.unreachable: dict[int, str] = {}

    @property
    def open(self) -> Set[int]:
        """The workers on which the task has not ended."""
        return self._open.keys()

    def advance(self) -> float | None:
        """Advance each task that is due. A worker that hangs delays the others by `WAIT_FOR_ANSWERS` at most, and once.

        Returns:
            Seconds until the next task is due; None when all have ended.

        Raises:
            TpuxError: a task failed.
        """
        now = self._workers.clock.monotonic()
        due = {index: task for index, task in self._open.items() if self._due[index] <= now}
        for index, answer in self._calls.make(due, self._advance, WAIT_FOR_ANSWERS).items():
            if isinstance(answer, TpuxError):
                raise answer
            if answer is None:
                del self._open[index]
            else:
                self._due[index] = now + answer
        if not self._open:
            return None
        busy, later = self._workers.threads.busy(), self._workers.clock.monotonic() + POLL_EVERY
        return max(0.0, min(later if n in busy else self._due[n] for n in self._open) - self._workers.clock.monotonic())

    def _advance(self, index: int, task: WorkerTask[R]) -> float | None:
        try:
            return next(task)
        except StopIteration as end:
            self.results[index] = end.value
        except HostUnreachableError as error:
            self.unreachable[index] = str(error)
        return None


def retry_unreachable(
    workers: Workers, worker: Worker, call: Callable[[OpenHost], R], *, any_error: bool = False
) -> WorkerTask[R]:
    """Call `call` with the worker's host, again and again while the worker is unreachable; return its result.

    `Workers.patience` says for how long.

    Args:
        workers: the workers of the job.
        worker: which worker.
        call: takes an open host.
        any_error: a worker on which `call` fails counts as unreachable.

    Raises:
        HostUnreachableError: the worker was observed to be unreachable for `Patience.lost_after`, `Patience.is_over`,
            or the transport's plugin failed `TRANSPORT_TRIES` times and no worker has ever answered.
    """
    retries = 0
    while True:
        try:
            answer = call(workers.host(worker))
        except TpuxError as error:
            unreachable = isinstance(error, HostUnreachableError)
            if not unreachable and not any_error:
                raise
            delay = UNREACHABLE_BACKOFF.delay(retries)
            seconds = workers.mark_unreachable(worker, error, delay)
            patience, was_reached = workers.patience, worker.index in workers.reached
            if isinstance(error, TransportFailedError) and patience.waits_for_transport:
                overdue = not workers.reached and retries + 1 >= TRANSPORT_TRIES
            else:
                overdue = seconds > patience.lost_after
            if overdue or patience.is_over(tries=retries + 1, was_reached=was_reached):
                raise error if unreachable else HostUnreachableError(error.message, where=error.where) from error
            yield delay
            retries += 1
        else:
            workers.mark_reachable(worker)
            return answer


SYNC_TIMEOUT = 600.0
"""Seconds that a worker may take to write to its disk what a set-up has left in memory."""


@dataclass
class DoneSteps:
    """How many of the first steps of a plugin a try has done, and what their runs are named after."""

    name: str = ""
    count: int = 0


def run_steps(
    workers: Workers,
    worker: Worker,
    steps: Generator[Step, Result, object] | None,
    *,
    log: str,
    name: str,
    header: str = "",
    any_error: bool = False,
    done: DoneSteps | None = None,
    at_once: bool = False,
    lasts: Callable[[Step], None] | None = None,
) -> WorkerTask[tuple[Step, Result] | None]:
    """Run a plugin's steps on a worker.

    Args:
        workers: the workers of the job.
        worker: which worker.
        steps: what the plugin yields; None if it has no steps.
        log: the log's name, without the worker.
        name: names the steps' processes; the same each time the steps are run again.
        header: the log's line before the steps.
        any_error: a worker on which a step cannot be started counts as unreachable.
        done: what an earlier try has done, which is not done again; receives what this one has.
        at_once: the first script changes nothing, and is tried in one exchange.
        lasts: called with the step that is not done yet, each time it was polled.

    Returns:
        The step that failed and its result; None if all succeeded.
    """
    if steps is None:
        return None
    earlier, count = done or DoneSteps(), done.count if done else 0

    def run(number: int, step: Sh) -> process.RemoteProcess:
        digest = hashlib.sha256(step.script.encode()).hexdigest()[:8]
        key = process.worker_key(scope.key, worker.index)
        named = earlier.name if number <= count else name
        return process.RemoteProcess(key, scope.attempt + 1, f"r{scope.round}-{named}-{number}-{digest}")

    scope = workers.scope
    path = scope.logs / f"{log}_worker_{worker.index}.log"
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    title = header or f"round {scope.round}: {name}"
    runner = StepRunner(
        (yield from retry_unreachable(workers, worker, lambda host: host, any_error=any_error)),
        steps,
        run,
        ReplayLog(path, f"== {title} =="),
        done=count,
        at_once=at_once,
    )

    def advance(host: OpenHost) -> bool:
        runner.host = host
        return runner.advance(TIME_SLICE)

    try:
        while not (yield from retry_unreachable(workers, worker, advance, any_error=any_error)):
            if lasts is not None and runner.step is not None:
                lasts(runner.step)
            yield POLL_EVERY
    finally:  # also where the worker could not start a step
        earlier.count = runner.succeeded
    return runner.failed


def write_marker(
    workers: Workers, worker: Worker, module: str, marker: bytes, *, after_setup: bool = False
) -> WorkerTask[None]:
    """Write the marker of a module on a worker; see `tpux.remote.markers`.

    Args:
        workers: the workers of the job.
        worker: the worker.
        module: the module.
        marker: what is written.
        after_setup: what it stands for is new, and written to the disk first: the machine may crash.
    """

    def put(host: OpenHost) -> None:
        if after_setup:
            host.run("sync -f .", timeout=SYNC_TIMEOUT)
        host.put(marker, marker_path(module))

    yield from retry_unreachable(workers, worker, put)


def step_title(step: Step) -> str:
    """Return what a step does, in a few words."""
    return f"put {step.remote}" if isinstance(step, Put) else step.title


def describe_failure(step: Step, result: Result, lines: int = 1) -> str:
    """Return in one line how a step failed, with the lines of its output that state why, else the last ones."""
    full = disks.said(result.text)
    text = result.text.replace(f"tpux: {full}\n", "")
    said = step_reason(text) or [line.strip() for line in text.splitlines() if line.strip()][-lines:]
    how = f"`{step_title(step)}` exited with {result.code}: {' | '.join(said or ['no output'])}"
    return f"{full}: {how}" if full else how
