"""Run a hook's steps: with answers instead of a worker (`steps_of`), or on a worker as core does (`WorkerSteps`)."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tpux.model.host import OpenHost
from tpux.model.steps import Put, Result, Sh, Step
from tpux.remote.process import RemoteProcess
from tpux.remote.steps import ReplayLog, StepRunner

Answer = Result | str | int
Hook = Callable[..., object]
_LONGEST_TURN = 0.5


@dataclass(frozen=True)
class StepsTaken:
    """The steps that a hook has yielded.

    Attributes:
        steps: the steps, in order.
        value: what the generator returned at its end.
        failed: the step whose result ended the generator early; None if none did.
    """

    steps: list[Step]
    value: object = None
    failed: Step | None = None


def steps_of(steps: Generator[Step, Result, object], answers: Mapping[str, Answer] | None = None) -> StepsTaken:
    """Return the steps that a hook yields; nothing is run.

    Args:
        steps: what `check`, `setup` or `solve` returned.
        answers: results, by a part of the script: the output as text, an exit code, or a `Result`. All other
            scripts succeed with their `example`. A failure ends the steps, as on a worker, unless it may fail.

    Returns:
        The steps, what the generator returned, and the step that failed.

    Raises:
        ValueError: an answer fits no step.

    Example:
        taken = steps_of(setup(config), answers={"uname -m": "aarch64"})
        assert taken.steps[-1].script == "install aarch64"
    """
    unused = set(answers or {})
    taken: list[Step] = []
    value: object = None
    failed: Step | None = None
    result: Result | None = None
    while failed is None:
        try:
            step = next(steps) if result is None else steps.send(result)
        except StopIteration as end:
            value = end.value
            break
        taken.append(step)
        key = _matching(step, answers or {})
        unused.discard(key)
        result = _result((answers or {})[key]) if key else step.example if isinstance(step, Sh) else Result()
        if not result.ok and not (isinstance(step, Sh) and step.may_fail):
            failed = step
            steps.close()
    if unused:
        scripts = "\n".join(step.script if isinstance(step, Sh) else f"put {step.remote}" for step in taken)
        raise ValueError(f"no step contains {' or '.join(map(repr, sorted(unused)))}; the steps are:\n{scripts}")
    return StepsTaken(taken, value, failed)


def _matching(step: Step, answers: Mapping[str, Answer]) -> str:
    return next((part for part in answers if part in step.script), "") if isinstance(step, Sh) else ""


def _result(answer: Answer) -> Result:
    if isinstance(answer, int):
        return Result(answer)
    return Result(0, answer.encode()) if isinstance(answer, str) else answer


@dataclass
class WorkerSteps:
    """A hook's steps on a worker, as they are taken.

    Attributes:
        steps: the steps, in order.
        results: their results; one less while a step runs, or if the last one has failed.
        failed: the step that failed, and its result; None if none has.
        log: the scripts and their output.
    """

    steps: list[Step] = field(default_factory=list)
    results: list[Result] = field(default_factory=list)
    failed: tuple[Step, Result] | None = None
    log: str = ""


def run_on(
    host: OpenHost, steps: Generator[Step, Result, object], *, run: RemoteProcess, log: Path, limit: int | None = None
) -> WorkerSteps:
    """Run a hook's steps on a worker with core's own runner.

    Args:
        host: the worker.
        steps: what the hook returned.
        run: the run; each step is one of its own, with a number.
        log: where scripts and output are logged.
        limit: stop after so many steps, as if tpux had been killed there.
    """
    taken = WorkerSteps()

    def recorded() -> Generator[Step, Result, object]:
        try:
            step = next(steps)
            while True:
                if limit is not None and len(taken.steps) == limit:
                    return None
                taken.steps.append(step)
                result = yield step
                taken.results.append(result)
                step = steps.send(result)
        except StopIteration as end:
            return end.value
        finally:
            steps.close()

    def numbered(number: int, _: Sh) -> RemoteProcess:
        return RemoteProcess(run.job, run.attempt, f"{run.name}-{number}")

    runner = StepRunner(host, recorded(), numbered, ReplayLog(log, f"== {run.name} =="))
    while not runner.advance(_LONGEST_TURN):
        pass  # each call polls the step once, and waits for it
    taken.failed = runner.failed
    taken.log = log.read_text(errors="replace") if log.exists() else ""
    return taken


def describe(step: Step) -> str:
    """Return a step in a few words: its script's first line, or the file that it puts."""
    if isinstance(step, Put):
        return f"put {step.remote}"
    first, *_ = step.script.strip().splitlines() or [""]
    return f"`{first}`"
