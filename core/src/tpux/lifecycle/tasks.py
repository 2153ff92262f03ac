"""One story a worker: a generator that does the next thing each time it is asked, and yields how long to wait.

Told in parallel over the workers. A worker that cannot be reached is tried again, with growing pauses,
from where its story stood.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Generator, Mapping
from typing import TYPE_CHECKING, Generic, TypeVar

from tpux.errors import HostUnreachableError, TpuxError
from tpux.plugin.host import Host
from tpux.plugin.machines import Worker
from tpux.plugin.steps import Result, Sh, Step
from tpux.remote import process
from tpux.remote.fanout import fanout
from tpux.remote.steps import ReplayLog, StepRunner

if TYPE_CHECKING:
    from tpux.lifecycle.context import JobContext

R = TypeVar("R")
WorkerTask = Generator[float, None, R]
PATIENCE = 1.0
"""Seconds that one turn gives to steps that end quickly."""
POLL = 0.25
"""Seconds between two looks at a step that takes longer."""


class TaskGroup(Generic[R]):
    """The same story on several workers.

    Attributes:
        endings: what the stories that ended returned, by worker.
        lost: the workers whose story broke off, out of reach for too long, and what came instead of an answer.
    """

    def __init__(self, context: JobContext, stories: Mapping[int, WorkerTask[R]]) -> None:
        self._context = context
        self._open = dict(stories)
        self._due = dict.fromkeys(stories, 0.0)
        self.endings: dict[int, R] = {}
        self.lost: dict[int, str] = {}

    def turn(self) -> float | None:
        """Go on with each story whose turn it is; in how many seconds for the next, None once all have ended.

        Raises:
            TpuxError: a story could not go on.
        """
        now = self._context.clock.now()
        due = {index: story for index, story in self._open.items() if self._due[index] <= now}
        for index, answer in fanout(due, self._go_on).items():
            if isinstance(answer, TpuxError):
                raise answer
            if answer is None:
                del self._open[index]
            else:
                self._due[index] = now + answer
        if not self._open:
            return None
        return max(0.0, min(self._due[index] for index in self._open) - self._context.clock.now())

    def _go_on(self, index: int, story: WorkerTask[R]) -> float | None:
        try:
            return next(story)
        except StopIteration as end:
            self.endings[index] = end.value
        except HostUnreachableError as error:
            self.lost[index] = str(error)
        return None


def retry_unreachable(context: JobContext, worker: Worker, call: Callable[[Host], R]) -> WorkerTask[R]:
    """What `call` gives on the worker's host, tried again as long as the worker does not answer.

    Raises:
        HostUnreachableError: it did not answer for `watch.lost_after` seconds.
    """
    pause = 0.5
    while True:
        try:
            answer = call(context.host(worker))
        except HostUnreachableError as error:
            if context.missed(worker, error) > context.job.watch.lost_after:
                raise
            yield pause * random.uniform(0.8, 1.2)  # noqa: S311  (jitter, no secret)
            pause = min(pause * 2, 15.0)
        else:
            context.reached(worker)
            return answer


def walk(
    context: JobContext,
    worker: Worker,
    steps: Generator[Step, Result, object] | None,
    *,
    log: str,
    name: str,
    header: str = "",
) -> WorkerTask[tuple[Step, Result] | None]:
    """Take a plugin's steps on a worker; the step that failed and how, None where all went well.

    Args:
        context: the job.
        worker: where.
        steps: what the plugin yields; None where it has none.
        log: the name of the log, without its worker.
        name: what the steps' runs are called; the same for each time they are taken.
        header: what the log says before them.
    """
    if steps is None:
        return None

    def run(number: int, step: Sh) -> process.RemoteProcess:
        digest = hashlib.sha256(step.script.encode()).hexdigest()[:8]
        return process.RemoteProcess(
            context.job.key, context.state.attempt + 1, f"r{context.state.round}-{name}-{number}-{digest}"
        )

    path = context.record.logs / f"{log}_worker_{worker.index}.log"
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    title = header or f"round {context.state.round}: {name}"
    walker = StepRunner(
        (yield from retry_unreachable(context, worker, lambda host: host)),
        steps,
        run,
        ReplayLog(path, f"== {title} =="),
    )
    while not (yield from retry_unreachable(context, worker, lambda host: _take_turn(walker, host))):
        yield POLL
    return walker.failed


def _take_turn(walker: StepRunner, host: Host) -> bool:
    walker.host = host
    return walker.turn(PATIENCE)
