"""Whether a program has finished, as the detectors say that its job trusts, and what these read on its workers."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping

from tpux.lifecycle.attempt import workers
from tpux.lifecycle.context import JobContext
from tpux.lifecycle.failure import ask_detectors, attempt_for_detectors, classify, failed_exits
from tpux.lifecycle.root_cause import finished_before
from tpux.lifecycle.tasks import TaskGroup, WorkerTask, run_steps
from tpux.model.events import Collected
from tpux.model.failures import Failure, Finished
from tpux.model.job import Job
from tpux.model.json import JsonValue
from tpux.model.machines import Inspection, MachineStatus, Worker
from tpux.model.program_output import LONGEST
from tpux.model.steps import Result, Step
from tpux.plugin import spec
from tpux.plugin.guard import PluginError
from tpux.plugin.manager import Plugins

_Claims = frozenset[tuple[int | None, float | None]]
_Data = Mapping[str, JsonValue] | None
_Found = dict[str, Mapping[str, JsonValue]]


class Collection:
    """What detectors read on the workers of an attempt, once the program has ended there, or all are silent."""

    def __init__(self, context: JobContext) -> None:
        self._context = context
        self._words = collecting_plugins(context.job, context.plugins)
        self._ended: set[int] = set()
        self._groups: list[TaskGroup[_Found]] = []
        self._silent_rounds = 0

    def begin_ended(self) -> None:
        """Begin on the workers where the command has ended."""
        new = self._context.state.endings.keys() - self._ended
        self._ended |= new
        self._begin(new, "ended")

    def begin_silent(self) -> None:
        """Begin on the workers where the command is running; what they had left before is read again."""
        self._silent_rounds += 1
        # Named by the time as well: steps of the same name, also of an earlier supervisor, are not run again.
        name = f"silent-{int(self._context.clock.now())}-{self._silent_rounds}"
        self._begin(workers(self._context, without=self._context.state.endings).keys(), name)

    def advance(self) -> float | None:
        """Advance what has begun, and write what is new.

        Returns:
            Seconds until the next call; None when nothing is left to do.

        Raises:
            PluginError: a plugin's `collect` failed.
        """
        delays = []
        for group in list(self._groups):
            if (delay := group.advance()) is None:
                self._groups.remove(group)
                self._write(group.results)
            else:
                delays.append(delay)
        return min(delays, default=None)

    def _begin(self, indices: Iterable[int], name: str) -> None:
        chosen = set(indices)
        if self._words and chosen:
            tasks = {
                index: _collect(self._context, worker, self._words, name)
                for index, worker in workers(self._context).items()
                if index in chosen
            }
            self._groups.append(TaskGroup(self._context, tasks, "a step of a detector"))

    def _write(self, results: dict[int, _Found]) -> None:
        state = self._context.state
        for worker, found in sorted(results.items()):
            for word, data in found.items():
                if data != state.collected.get(worker, {}).get(word):
                    self._context.write(Collected(attempt=state.attempt, worker=worker, plugin=word, data=data))


def collecting_plugins(job: Job, plugins: Plugins) -> list[str]:
    """Return the detectors that `command.finished_by` or a section of the config names, and that collect."""
    named = dict.fromkeys([*job.command.finished_by, *job.sections])
    installed = set(plugins.names()) - job.disabled_plugins
    return [name for name in named if name in installed and plugins.implements(name, spec.collect)]


def _collect(context: JobContext, worker: Worker, words: list[str], name: str) -> WorkerTask[_Found]:
    found, attempt = _Found(), attempt_for_detectors(context, Inspection(MachineStatus("ready")))
    for word in words:
        context.unanswered.pop((word, worker.index), None)
        section, answer = context.job.sections.get(word), list[_Data]()
        try:
            steps = context.plugins.call_one(
                word, spec.collect, job=context.job, config=section, attempt=attempt, worker=worker
            )
            kept = None if steps is None else _keep(steps, answer)
            failed = yield from run_steps(context, worker, kept, log="collect", name=f"collect-{word}-{name}")
        except PluginError as error:
            if not context.is_last_try(error):
                raise
            context.unanswered[word, worker.index] = f"worker {worker.index}: {error.message}"
            context.log("tpu.log", f"worker {worker.index}: {error.message}; continuing without it")
            continue
        if failed is not None:
            why = f"worker {worker.index}: {word} could not read what the program left: "
            context.unanswered[word, worker.index] = why + failed[1].text.rpartition("\n")[2][:LONGEST]
            context.log("tpu.log", why + failed[1].text)
        elif answer and (data := answer[0]) is not None:
            found[word] = data
    return found


def _keep(steps: Generator[Step, Result, _Data], answer: list[_Data]) -> Generator[Step, Result, None]:
    """Pass the steps on, and keep the value that they return at their end."""
    answer.append((yield from steps))


class FinishedCheck:
    """Asks the detectors of `command.finished_by` while all workers are silent.

    A program may finish, silently, just before they are asked, and still save its results. So the answer counts once
    they have said the same for `watch.straggler_grace`, in seconds of observed silence: the workers' clocks, by which a
    detector tells when the program finished, may be wrong.
    """

    def __init__(self, context: JobContext, collection: Collection) -> None:
        self._context = context
        self._collection = collection
        self._grace = context.job.watch.straggler_grace
        self._reset()

    def _reset(self) -> None:
        self._ask_at, self._asking = self._grace, False
        self._claims, self._claimed_at = _Claims(), 0.0

    def advance(self, silent: float, collecting: float | None, machines: Inspection) -> Finished | None:
        """Ask the detectors when it is time to.

        Args:
            silent: for how many seconds no worker was observed to write anything.
            collecting: seconds until the collection is continued; None if there is nothing to collect.
            machines: the allocator's last answer.

        Returns:
            What shows that the program has finished, and may be ended; None if that is not known yet.
        """
        if silent < self._grace:
            self._reset()
        elif self._asking and collecting is None:
            self._asking = False
            return self._ask(silent, machines)
        elif not self._asking and silent > self._ask_at:
            self._asking, self._ask_at = True, 2 * silent + 1
            self._collection.begin_silent()
        return None

    def _ask(self, silent: float, machines: Inspection) -> Finished | None:
        asked_at = self._context.clock.now()
        answers, _ = ask_detectors(self._context, machines)
        finished = finished_before(answers, failed_exits(self._context))
        # A time that is not past is that of the question, such as the `at` of a worker whose program is running.
        claims = _Claims((one.worker, one.at if one.at is not None and one.at < asked_at else None) for one in answers)
        if claims != self._claims:
            self._claims, self._claimed_at = claims, silent
        if finished is None:
            return None
        self._ask_at = self._claimed_at + self._grace
        return finished if silent >= self._ask_at else None


def has_finished(context: JobContext, machines: Inspection, early_failure: Failure | None) -> bool:
    """Return whether the program had finished before its machines were lost, as a detector says that the job trusts.

    Raises:
        PluginError: a plugin's `classify_failure` failed.
    """
    trusts = bool(context.job.command.finished_by)
    return trusts and isinstance(classify(context, machines, early_failure), Finished)
