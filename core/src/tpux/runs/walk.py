"""Taking a plugin's steps on one worker, so that it can be broken off anywhere and taken again."""

from __future__ import annotations

from collections.abc import Callable, Generator

from tpux.clock import Clock, SystemClock
from tpux.hosts import Host
from tpux.runs.progress import Progress
from tpux.runs.replay import ReplayLog as ReplayLog
from tpux.runs.run import Run
from tpux.steps import Put, Result, Sh, Step

_WAIT = 1.0


class Walk:
    """A generator of steps, driven on one worker.

    Each script is a run of its own. After the supervisor's death the generator is run again from its
    start: a step that has an exit code there answers from the worker's disk, one that runs is attached
    to, and files are copied again. Scripts are logged, so a step must not contain secrets; those
    travel in a `Put`.

    Args:
        host: the worker; may be replaced between two turns.
        steps: what a plugin's hook gave.
        name: the run of a step, from its number and the step, the same each time.
        log: where the scripts' first lines and their output go.
        clock: tells how long a step has taken.

    Attributes:
        failed: the step that ended the walk and how, None where none did.
        value: what the generator returned.
    """

    def __init__(
        self,
        host: Host,
        steps: Generator[Step, Result, object],
        name: Callable[[int, Sh], Run],
        log: ReplayLog,
        clock: Clock | None = None,
    ) -> None:
        self.host = host
        self.failed: tuple[Step, Result] | None = None
        self.value: object = None
        self._steps = steps
        self._name = name
        self._log = log
        self._clock = clock or SystemClock()
        self._number = 0
        self._step: Step | None = None
        self._progress: Progress | None = None

    @property
    def run(self) -> Run | None:
        """The run of the step that is under way, None between two."""
        return self._progress.run if self._progress else None

    def turn(self, patience: float) -> bool:
        """Take steps for `patience` seconds, or until one takes longer; whether the walk has ended.

        Raises:
            HostUnreachableError: the worker did not answer; the next turn goes on from here.
            TpuxError: the worker could not start a step.
            Exception: what the generator raised.
        """
        deadline = self._clock.now() + patience
        if self._number == 0:
            self._go_on(None)
        while self._step is not None:
            result = self._take(self._step, deadline - self._clock.now())
            if result is None:
                break
            self._answer(self._step, result)
            if self._clock.now() >= deadline:
                break
        return self._step is None

    def _take(self, step: Step, wait: float) -> Result | None:
        if isinstance(step, Put):
            self.host.put(step.source, step.remote, step.mode)
            self._log.line(f"put {step.remote}")
            return Result()
        if self._progress is None:
            self._progress = Progress(self._name(self._number, step), step, self._log, self._clock)
        return self._progress.turn(self.host, min(max(wait, 0.0), _WAIT))

    def _answer(self, step: Step, result: Result) -> None:
        """Let the generator go on with the result, unless it is a failure that it did not allow for."""
        allowed = isinstance(step, Sh) and step.may_fail and not (self._progress and self._progress.lost)
        self._progress = None
        if result.ok or allowed:
            self._go_on(result)
        else:
            self.failed, self._step = (step, result), None
            self._steps.close()

    def _go_on(self, result: Result | None) -> None:
        self._number += 1
        self._step = None  # where the generator raises, the walk has ended
        try:
            self._step = next(self._steps) if result is None else self._steps.send(result)
        except StopIteration as end:
            self.value = end.value


def dry_run(steps: Generator[Step, Result, object]) -> list[Step]:
    """The steps that a generator yields where each answer is its `example`: nothing is done.

    Args:
        steps: what a plugin's hook gave.
    """
    taken: list[Step] = []
    try:
        step = next(steps)
        while True:
            taken.append(step)
            step = steps.send(step.example if isinstance(step, Sh) else Result())
    except StopIteration:
        return taken
