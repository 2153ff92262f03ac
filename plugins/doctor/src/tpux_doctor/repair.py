"""Run the solvers on a job's workers, or say what they would do, for `tpux solve`.

This is done without the job's lock and outside of its supervisor, and only while no program of the job runs.
"""

from __future__ import annotations

import secrets
from collections.abc import Generator, Sequence
from dataclasses import dataclass

from tpux import HostUnreachableError, JsonValue, Put, Result, Sh, Step, Steps, TpuxError, Worker
from tpux.api import JobConnection, run_steps
from tpux.api.machines import OpenHost
from tpux.api.steps import steps_to_json


@dataclass(frozen=True)
class Repair:
    """What one plugin's solver did on one worker.

    Attributes:
        plugin: the plugin, "" if the worker did not answer.
        log: what its steps ran and wrote.
        problem: how it failed, "" if it did not.
    """

    worker: int
    plugin: str
    log: str
    problem: str = ""


@dataclass(frozen=True)
class PlannedRepair:
    """What one plugin's solver would do on one worker.

    Attributes:
        plugin: the plugin, "" if the worker did not answer.
        would: each action in words, as the previews of the steps have found it on the worker; none if nothing is
            to be repaired.
        steps: the steps that it would run, assuming that each succeeds.
        problem: why that is unknown, "" if it is known.
    """

    worker: int
    plugin: str
    would: tuple[str, ...] = ()
    steps: tuple[Step, ...] = ()
    problem: str = ""

    def to_json(self) -> dict[str, JsonValue]:
        """Return the repair for `--json`."""
        would: list[JsonValue] = [*self.would]
        found: dict[str, JsonValue] = {"worker": self.worker, "plugin": self.plugin, "would": would}
        return {**found, "steps": steps_to_json(self.steps), "problem": self.problem}


def plan_repairs(connection: JobConnection, workers: Sequence[Worker]) -> list[PlannedRepair]:
    """Return what the solvers would do on the workers, which changes nothing there."""
    token = secrets.token_hex(4)
    answers = connection.each(workers, lambda host: _plan(connection, host, token))
    return [
        repair
        for index, answer in answers.items()
        for repair in ([PlannedRepair(index, "", problem=answer.message)] if isinstance(answer, TpuxError) else answer)
    ]


def repair_workers(connection: JobConnection, workers: Sequence[Worker]) -> list[Repair]:
    """Run the solvers on the workers, in parallel. A worker that does not answer is a problem."""
    token = secrets.token_hex(4)
    answers = connection.each(workers, lambda host: _repair(connection, host, token))
    return [
        repair
        for index, answer in answers.items()
        for repair in ([Repair(index, "", "", answer.message)] if isinstance(answer, TpuxError) else answer)
    ]


def _repair(connection: JobConnection, host: OpenHost, token: str) -> list[Repair]:
    done, index = list[Repair](), host.worker.index
    for name, steps in connection.repairs(host.worker):
        try:
            if isinstance(steps, TpuxError):
                raise steps
            ended = run_steps(connection, host, steps, f"solve-{token}-{name}")
        except HostUnreachableError:
            raise
        except TpuxError as error:
            done.append(Repair(index, name, "", error.message))
        else:
            done.append(Repair(index, name, ended.log, ended.problem))
    return done


def _plan(connection: JobConnection, host: OpenHost, token: str) -> list[PlannedRepair]:
    planned, index = list[PlannedRepair](), host.worker.index
    for name, steps in connection.repairs(host.worker):
        taken, would, problem = list[Step](), list[str](), ""
        try:
            if isinstance(steps, TpuxError):
                raise steps
            previews = _previews(steps, taken, would)
            problem = run_steps(connection, host, previews, f"preview-{token}-{name}").problem
        except HostUnreachableError:
            raise
        except TpuxError as error:
            problem = error.message
        planned.append(PlannedRepair(index, name, tuple(would), tuple(taken), problem))
    return planned


def _previews(steps: Steps, taken: list[Step], would: list[str]) -> Generator[Step, Result, None]:
    """Yield the preview of each step in its place; the step itself counts as run, with its example as the result.

    Args:
        steps: what a solver returned.
        taken: receives the steps.
        would: receives what they would do, in words.
    """
    result: Result | None = None
    while True:
        try:
            step = next(steps) if result is None else steps.send(result)
        except StopIteration:
            return
        taken.append(step)
        result = step.example if isinstance(step, Sh) else Result()
        if isinstance(step, Put):
            would.append(f"would copy a file to {step.remote}")
        elif not step.preview:
            would.append(f"would run: {step.title}")
        else:
            found = yield Sh(step.preview, timeout=step.timeout)
            would += [line.strip() for line in found.text.splitlines() if line.strip()]
