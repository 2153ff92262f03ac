"""Call the `monitor` hooks on the workers while the command runs: what they warn of, and what ends the attempt."""

from __future__ import annotations

import logging
import math
import random
import time
from dataclasses import replace

from tpux import threads
from tpux.errors import TpuxError, plain_reason
from tpux.lifecycle.checkpoint import storage_options
from tpux.lifecycle.turn import Turn
from tpux.lifecycle.verdict import attempt_for_detectors
from tpux.model.events import Warned
from tpux.model.failures import Failure, Finding
from tpux.model.machines import Inspection, MachineStatus, Worker
from tpux.model.steps import Result, Sh, Step
from tpux.plugin import spec
from tpux.remote.calls import StepInterruptedError, WorkerCalls
from tpux.remote.steps import run_at_once
from tpux.remote.tasks import describe_failure
from tpux.store import monitored

_log = logging.getLogger(__name__)
HOOK_TIMEOUT = 30.0
"""Real seconds after which a hook that has not returned is reported, and no longer waited for."""
STEP_TIMEOUT = 30.0
"""Seconds after which a step is ended: meanwhile the program on that worker is not polled."""
SOONER = 4
"""How many times as often a worker is examined on which something was found."""
_Key = tuple[str, int]


class Monitors:
    """The monitors of an attempt.

    Args:
        turn: the step in which the attempt is first polled.

    Attributes:
        failure: why a monitor ends the attempt; None if none does.
        next_at: when `update` has something to do, by the monotonic clock.
        problem: what is short, or which monitor failed, and on which worker; "" if nothing is wrong.
    """

    def __init__(self, turn: Turn) -> None:
        now, every = turn.clock.monotonic(), turn.job.watch.resources_every
        installed = turn.plugins.implementing(spec.monitor)
        names = [name for name in installed if name not in turn.job.disabled_plugins]
        # Spread, so that the examinations of 64 workers do not coincide.
        self._due: dict[_Key, float] = {
            (name, index): now + random.uniform(0, every / SOONER)  # noqa: S311
            for name in names
            for index in turn.state.run.workers
        }
        self.next_at = min(self._due.values(), default=math.inf)
        self.problem = ""
        self.failure: Failure | None = None
        self._running: dict[_Key, _Examination] = {}
        self._late: dict[_Key, _Examination] = {}
        self._found: dict[_Key, list[Finding]] = {}
        self._problems: dict[_Key, str] = {}
        self._reported: set[str] | None = None

    def update(self, turn: Turn) -> None:
        """Begin the examinations that are due, and take the answers of earlier ones; never waits. Write what is new."""
        now = turn.clock.monotonic()
        if now < self.next_at:
            return
        for key in [key for key, at in self._due.items() if at <= now]:
            self._begin(turn, key, now)
        ended = [key for key, each in self._running.items() if not each.task.alive or each.is_late()]
        for key in ended:
            self._take(turn, key, now)
        self.next_at = 0.0 if self._running else min(self._due.values(), default=math.inf)
        if ended:
            self._report(turn)

    def _begin(self, turn: Turn, key: _Key, now: float) -> None:
        name, index = key
        if index in turn.state.endings:
            del self._due[key]
            return
        late = self._late.get(key)
        if index in turn.workers.unreachable or (late is not None and late.task.alive):
            self._due[key] = now + turn.job.watch.resources_every
            return
        self._late.pop(key, None)
        self._running[key] = _Examination(turn, name, turn.machines.workers[index])
        del self._due[key]

    def _take(self, turn: Turn, key: _Key, now: float) -> None:
        """Take the answer of an examination that has ended, or is late, and decide when the next one begins."""
        (name, index), examination, every = key, self._running.pop(key), turn.job.watch.resources_every
        problem, answer = examination.problem, examination.answer
        if examination.task.alive:
            self._late[key] = examination
            problem = f"plugin {name} has not returned from {spec.monitor.__name__} after {HOOK_TIMEOUT:.0f} s"
        elif isinstance(answer, Failure):
            worker, at = index if answer.worker is None else answer.worker, answer.at or turn.clock.now()
            self.failure = self.failure or replace(answer, worker=worker, at=at)
        elif not problem and answer is not None:
            self._found[key] = answer
            if any(finding.level != "ok" for finding in answer):
                every /= SOONER
        self._due[key] = now + every
        if not problem:
            self._problems.pop(key, None)
        elif self._problems.get(key) != problem:
            self._problems[key] = problem
            turn.log(f"worker {index}: {problem}; continuing without it")

    def _report(self, turn: Turn) -> None:
        """Show what is wrong, keep what was found, and write each resource that is short, once in an attempt."""
        warnings: dict[str, dict[int, Finding]] = {}
        found: dict[int, list[Finding]] = {}
        for (_, index), findings in sorted(self._found.items()):
            found.setdefault(index, []).extend(findings)
            for finding in findings:
                if finding.level in {"warning", "error"}:
                    warnings.setdefault(finding.where, {})[index] = finding
        self.problem = self._describe(warnings)
        try:
            monitored.save(turn.record.directory, turn.state.attempt, found)
        except OSError as error:  # what matters is written by others, and they report it
            _log.debug("job %s: %s cannot be written: %s", turn.state.id, monitored.FILE, error)
        if warnings and self._reported is None:  # perhaps a former supervisor has reported some
            self._reported = _reported_resources(turn)
        for resource, workers in warnings.items():
            if self._reported is not None and resource not in self._reported:
                self._reported.add(resource)
                message = next(iter(workers.values())).message
                turn.write(Warned(kind=resource, workers=tuple(workers), text=message))

    def _describe(self, warnings: dict[str, dict[int, Finding]]) -> str:
        problems: dict[int, str] = {}
        for workers in warnings.values():
            for index, finding in workers.items():
                problems.setdefault(index, finding.message)
        for (_, index), problem in self._problems.items():
            problems.setdefault(index, f"{problem}; continuing without it")
        if not problems:
            return ""
        (first, message), *others = sorted(problems.items())
        return f"worker {first}: {message}" + (f" ({len(others)} more workers)" if others else "")


class _Examination:
    """One call of a plugin's `monitor` for a worker, and its steps.

    It has a thread of its own, in which a hook that does not return delays neither the job nor its polls.

    Attributes:
        answer: what the plugin returned at the end of its steps.
        task: its thread.
        problem: how it failed; "" if it did not, or if its worker does not answer, which the polls report.
    """

    def __init__(self, turn: Turn, name: str, worker: Worker) -> None:
        self.answer: list[Finding] | Failure | None = None
        self.problem = ""
        self._turn = turn
        self._plugin = name
        self._worker = worker
        self._calls: WorkerCalls[Result] = turn.workers.calls("a step of a monitor")
        self._since: float | None = time.monotonic()
        self.task = threads.pool().submit(self._run)

    def is_late(self) -> bool:
        """Return whether the plugin's code, not a step, takes longer than `HOOK_TIMEOUT`."""
        since = self._since
        return since is not None and time.monotonic() - since > HOOK_TIMEOUT

    def _run(self) -> None:
        """Call the hook and run its steps. Errors are kept: a thread has nobody to raise them to."""
        try:
            self._examine()
        except (_NoAnswerError, StepInterruptedError):
            pass
        except BaseException as error:  # noqa: BLE001  (whatever it is, the job continues)
            self.problem = error.message if isinstance(error, TpuxError) else plain_reason(error)

    def _examine(self) -> None:
        turn, result = self._turn, None
        steps = turn.plugins.call_one(
            self._plugin,
            spec.monitor,
            job=turn.job,
            config=turn.job.sections.get(self._plugin),
            attempt=attempt_for_detectors(turn, Inspection(MachineStatus("ready"))),
            worker=self._worker,
            options=storage_options(turn, turn.state.run.output_dir),
        )
        while steps is not None:
            try:
                step = next(steps) if result is None else steps.send(result)
            except StopIteration as end:
                self.answer = end.value or []
                return
            self._since = None
            result = self._run_step(step)
            self._since = time.monotonic()
            if not result.ok and not (isinstance(step, Sh) and step.may_fail):
                steps.close()
                raise TpuxError(f"monitor {self._plugin}: {describe_failure(step, result)}")

    def _run_step(self, step: Step) -> Result:
        def call(_: int, worker: Worker) -> Result:
            return run_at_once(self._turn.workers.host(worker), step, STEP_TIMEOUT)

        answer = self._calls.make_all({self._worker.index: self._worker}, call)[self._worker.index]
        if isinstance(answer, TpuxError):
            raise _NoAnswerError from answer
        return answer


class _NoAnswerError(Exception):
    """The worker does not answer, or its connection fails."""


def _reported_resources(turn: Turn) -> set[str]:
    attempt, events = turn.state.attempt, turn.record.events()
    return {event.kind for event, _ in events if isinstance(event, Warned) and event.attempt == attempt}
