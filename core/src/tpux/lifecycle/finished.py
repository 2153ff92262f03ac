"""Whether a program that is still running has finished, according to the detectors that its job trusts."""

from __future__ import annotations

from tpux.lifecycle.allocation import Inspection
from tpux.lifecycle.collect import Collection
from tpux.lifecycle.context import JobContext
from tpux.lifecycle.failure import ask_detectors, classify, failed_exits
from tpux.lifecycle.root_cause import finished_before
from tpux.plugin.failures import Failure, Finished

_Claims = frozenset[tuple[int | None, float | None]]


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
