"""Whether a program has finished, as the detectors say that its job trusts, and what these read on its workers."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping

from tpux.lifecycle.programs import workers
from tpux.lifecycle.turn import Turn
from tpux.lifecycle.verdict import Unanswered, ask_detectors, attempt_for_detectors, failed_exits, finished_before
from tpux.model.events import Collected
from tpux.model.failures import Finished
from tpux.model.job import Job
from tpux.model.json import JsonValue
from tpux.model.machines import Inspection, MachineStatus, Worker
from tpux.model.program_output import LONGEST
from tpux.model.steps import Result, Step
from tpux.plugin import spec
from tpux.plugin.guard import PluginError
from tpux.plugin.manager import Plugins
from tpux.remote.tasks import TaskGroup, WorkerTask, run_steps

_Reports = frozenset[tuple[int | None, float | None]]
_Data = Mapping[str, JsonValue] | None
_Found = dict[str, Mapping[str, JsonValue]]


class Collection:
    """What detectors read on the workers of an attempt, once the program has ended there, or all are silent.

    Args:
        turn: the step in which the attempt is first polled.
        unanswered: receives which detectors could not be asked.
    """

    def __init__(self, turn: Turn, unanswered: Unanswered) -> None:
        self._named = collecting_plugins(turn.job, turn.plugins)
        self._unanswered = unanswered
        self._ended: set[int] = set()
        self._groups: list[TaskGroup[_Found]] = []
        self._silent_rounds = 0

    def begin_ended(self, turn: Turn) -> None:
        """Begin on the workers where the command has ended."""
        new = turn.state.endings.keys() - self._ended
        self._ended |= new
        self._begin(turn, new, "ended")

    def begin_silent(self, turn: Turn) -> None:
        """Begin on the workers where the command is running; what they had left before is read again."""
        self._silent_rounds += 1
        # Named by the time as well: steps of the same name, also of an earlier supervisor, are not run again.
        name = f"silent-{int(turn.clock.now())}-{self._silent_rounds}"
        self._begin(turn, workers(turn, without=turn.state.endings).keys(), name)

    def advance(self, turn: Turn) -> float | None:
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
                self._write(turn, group.results)
            else:
                delays.append(delay)
        return min(delays, default=None)

    def _begin(self, turn: Turn, indices: Iterable[int], name: str) -> None:
        chosen = set(indices)
        failed = {index for index, ending in turn.state.endings.items() if ending.code != 0} & chosen
        every = collecting_plugins(turn.job, turn.plugins, every=True) if failed else []
        asked = {index: every if index in failed else self._named for index in chosen}
        tasks = {
            index: _collect(turn, worker, asked[index], name, self._unanswered)
            for index, worker in workers(turn).items()
            if asked.get(index)
        }
        if tasks:
            self._groups.append(TaskGroup(turn.workers, tasks, "a step of a detector"))

    def _write(self, turn: Turn, results: dict[int, _Found]) -> None:
        state = turn.state
        for worker, found in sorted(results.items()):
            for detector, data in found.items():
                if data != state.collected.get(worker, {}).get(detector):
                    turn.write(Collected(attempt=state.attempt, worker=worker, plugin=detector, data=data))


def collecting_plugins(job: Job, plugins: Plugins, *, every: bool = False) -> list[str]:
    """Return the detectors that collect.

    Args:
        job: the job.
        plugins: the installed plugins.
        every: all of them that can be used, as on a worker that has failed; else those that `command.finished_by` or a
            section of the config names.
    """
    named = dict.fromkeys([*job.command.finished_by, *job.sections])
    installed = set(plugins.names()) - job.disabled_plugins
    found = [name for name in named if name in installed and plugins.implements(name, spec.collect)]
    others = plugins.implementing(spec.collect) if every else []
    return [*found, *(name for name in others if name in installed and name not in found)]


def _collect(turn: Turn, worker: Worker, detectors: list[str], name: str, unanswered: Unanswered) -> WorkerTask[_Found]:
    found, attempt = _Found(), attempt_for_detectors(turn, Inspection(MachineStatus("ready")))
    for detector in detectors:
        unanswered.pop((detector, worker.index), None)
        section, answer = turn.job.sections.get(detector), list[_Data]()
        try:
            steps = turn.plugins.call_one(
                detector, spec.collect, job=turn.job, config=section, attempt=attempt, worker=worker
            )
            kept = None if steps is None else _keep(steps, answer)
            failed = yield from run_steps(turn.workers, worker, kept, log="collect", name=f"collect-{detector}-{name}")
        except PluginError as error:
            if not turn.errors.is_last_try(error):
                raise
            unanswered[detector, worker.index] = f"worker {worker.index}: {error.message}"
            turn.log(f"worker {worker.index}: {error.message}; continuing without it")
            continue
        if failed is not None:
            why = f"worker {worker.index}: {detector} could not read what the program left: "
            unanswered[detector, worker.index] = why + failed[1].text.rpartition("\n")[2][:LONGEST]
            turn.log(why + failed[1].text)
        elif answer and (data := answer[0]) is not None:
            found[detector] = data
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

    def __init__(self, turn: Turn, collection: Collection, unanswered: Unanswered) -> None:
        self._collection = collection
        self._unanswered = unanswered
        self._grace = turn.job.watch.straggler_grace
        self._reset()

    def _reset(self) -> None:
        self._ask_at, self._asking = self._grace, False
        self._reports, self._reported_at = _Reports(), 0.0

    def advance(self, turn: Turn, silent: float, collecting: float | None, machines: Inspection) -> Finished | None:
        """Ask the detectors when it is time to.

        Args:
            turn: the step.
            silent: for how many seconds no worker was observed to write anything.
            collecting: seconds until the collection is continued; None if there is nothing to collect.
            machines: the allocator's last answer.

        Returns:
            What shows that the program has finished, and may be ended; None if that is not known yet.
        """
        if not turn.job.command.finished_by:
            return None
        if silent < self._grace:
            self._reset()
        elif self._asking and collecting is None:
            self._asking = False
            return self._ask(turn, silent, machines)
        elif not self._asking and silent > self._ask_at:
            self._asking, self._ask_at = True, 2 * silent + 1
            self._collection.begin_silent(turn)
        return None

    def _ask(self, turn: Turn, silent: float, machines: Inspection) -> Finished | None:
        asked_at = turn.clock.now()
        answers, _, _ = ask_detectors(turn, machines, self._unanswered)
        finished = finished_before(answers, failed_exits(turn))
        # A time that is not past is that of the question, such as the `at` of a worker whose program is running.
        reports = _Reports(
            (one.worker, one.at if one.at is not None and one.at < asked_at else None) for one in answers
        )
        if reports != self._reports:
            self._reports, self._reported_at = reports, silent
        if finished is None:
            return None
        self._ask_at = self._reported_at + self._grace
        return finished if silent >= self._ask_at else None
