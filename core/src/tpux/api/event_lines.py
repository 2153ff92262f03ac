"""Events as text: the lines of `tpux run` and the list of `tpux show`."""

from __future__ import annotations

from functools import singledispatch

from tpux.console import format_size
from tpux.model import events
from tpux.model.events import Event
from tpux.model.failures import Failure
from tpux.model.program_output import describe_code


class RepetitionFilter:
    """Finds the events whose line would say what an earlier one says.

    An allocator's new state is a `Waiting` event even if its reason is unchanged, and a request is accepted after the
    change of state that it has caused.

    Args:
        why: the reason that was printed last.
    """

    def __init__(self, why: str = "") -> None:
        self._why = why
        self._previous: Event | None = None

    def is_new(self, event: Event) -> bool:
        """Return whether the event is to be printed. Call it with every event, in their order."""
        previous, self._previous = self._previous, event
        if isinstance(event, events.RequestAccepted):
            if event.action == "transfer":
                return event.agreed or not event.to
            return not (isinstance(previous, events.StateChanged) and previous.to in {"stopping", "pending"})
        if isinstance(event, (events.StateChanged, events.Waiting)):
            repeated = isinstance(event, events.Waiting) and event.why == self._why
            self._why = event.why
            return not repeated
        return True


@singledispatch
def describe_event(event: Event) -> str:
    """Return one event as a line of text."""
    return str(event.to_json()["type"])


@describe_event.register
def _(event: events.Created) -> str:
    return f"created: {event.name}"


@describe_event.register
def _(event: events.StateChanged) -> str:
    return f"{event.to}: {event.why}" if event.why else event.to


@describe_event.register
def _(event: events.Waiting) -> str:
    return event.why


@describe_event.register
def _(event: events.AllocationRequested) -> str:
    return f"machines: {event.name}, from {event.allocator}"


@describe_event.register
def _(event: events.Allocated) -> str:
    return f"machines ready: {event.allocation.name}, {_workers(len(event.allocation.workers))}"


@describe_event.register
def _(_: events.CleanUpStarted) -> str:
    return "removing what must not stay on the workers"


@describe_event.register
def _(event: events.TakenOver) -> str:
    return f"machines of job {int(event.job)} taken over: {event.allocation.name}"


@describe_event.register
def _(event: events.Transferred) -> str:
    return f"job {int(event.to)} has taken over the machines"


@describe_event.register
def _(_: events.ReleaseStarted) -> str:
    return "releasing the machines"


@describe_event.register
def _(event: events.WorkerUpdated) -> str:
    return f"worker {event.worker.index} has changed, such as its host key"


@describe_event.register
def _(event: events.Released) -> str:
    return f"machines released, but {event.left}" if event.left else "machines released"


@describe_event.register
def _(event: events.ReleaseScheduled) -> str:
    return "machines kept until released by hand" if event.release_at is None else "release of the machines requested"


@describe_event.register
def _(event: events.AttemptStarted) -> str:
    how = f"resuming (stage {event.stage})" if event.resume else "from scratch"
    return f"starting attempt {event.attempt} on {_workers(len(event.workers))}, {how}"


@describe_event.register
def _(event: events.AttemptRunning) -> str:
    return f"attempt {event.attempt} started on all its workers"


@describe_event.register
def _(event: events.WorkerExited) -> str:
    code = "exit code unknown" if event.code is None else f"exit code {event.code}"
    reason = event.reason or (f"its machine sent SIG{event.signal}" if event.signal else "")
    return f"worker {event.worker} ended, {code}" + (f": {reason}" if reason else "")


@describe_event.register
def _(event: events.PreemptionAnnounced) -> str:
    return f"preemption announced on worker {event.worker}: {event.evidence}"


@describe_event.register
def _(event: events.AttemptEnded) -> str:
    came = [text for text in [str(event.progress or "")] if text]
    if event.repeated_steps:
        came.append(f"{event.repeated_steps} steps done again")
    how_far = f" ({', '.join(came)})" if came else ""
    if event.failure is None:
        finished = f": {event.finished}" if event.finished else ""
        return f"attempt {event.attempt} " + ("stopped" if event.stopped else "finished") + finished + how_far
    return f"attempt {event.attempt} ended: {_describe_ending(event.failure)}{how_far}"


@describe_event.register
def _(event: events.AttemptTerminating) -> str:
    return f"terminating attempt {event.attempt}: {_describe_ending(event.failure)}"


@describe_event.register
def _(event: events.Collected) -> str:
    return f"{event.plugin} has read what the program left on worker {event.worker}"


@describe_event.register
def _(event: events.FilesCollected) -> str:
    missing = f"; not fetched: {event.missing[0]}" if event.missing else ""
    more = f" (and {len(event.missing) - 1} more)" if len(event.missing) > 1 else ""
    return f"{describe_files(event)}{missing}{more}"


def describe_files(event: events.FilesCollected) -> str:
    """Return how many files were fetched after an attempt, and where they are."""
    if not event.files:
        return "no file collected"
    noun = "file" if event.files == 1 else "files"
    return f"{event.files} {noun} collected, {format_size(event.size)}, in {event.directory}"


@describe_event.register
def _(event: events.Warned) -> str:
    if event.hint:
        return f"warning: {event.text}; {event.hint}"
    others = f" ({len(event.workers) - 1} more workers)" if len(event.workers) > 1 else ""
    return f"warning: worker {event.workers[0]}: {event.text}{others}"


@describe_event.register
def _(event: events.Failed) -> str:
    return describe_failure(event.failure)


@describe_event.register
def _(event: events.ConfigChanged) -> str:
    return "config changed" + (f": {', '.join(event.changed)}" if event.changed else "")


@describe_event.register
def _(event: events.ResolutionUpdated) -> str:
    return f"{event.plugin} updated"


@describe_event.register
def _(event: events.RequestAccepted) -> str:
    if event.agreed:
        return f"job {int(event.to)} takes over the machines"
    if event.action == "transfer" and not event.to:
        return "the machines were not taken over"
    return f"{event.action} requested" + ("; backoff skipped" if event.backoff_skipped else "")


def _workers(count: int) -> str:
    return "1 worker" if count == 1 else f"{count} workers"


def _describe_ending(failure: Failure) -> str:
    """Return a failure as what ended an attempt: an exit code alone is told by the code, not by its kind `program`."""
    if failure.worker is None or stated_line(failure) == failure.evidence:
        return describe_failure(failure)
    code, colon, line = failure.evidence.partition(": ")
    return f"{code} on worker {failure.worker}{colon}{line}{_others(failure)}"


def stated_line(failure: Failure) -> str:
    """Return the line that states a failure: its evidence, without the exit code that it begins with."""
    if failure.kind == "program" and failure.evidence.startswith("exit code "):
        return failure.evidence.partition(": ")[2]
    return failure.evidence


def describe_failure(failure: Failure) -> str:
    """Return a failure as one line: its kind, its worker and exit code, its evidence, and how many others failed."""
    where = "" if failure.worker is None else f" on worker {failure.worker}"
    if not where and failure.evidence.startswith(f"{failure.kind} "):
        return failure.evidence  # "plugin ssh ... failed"
    if failure.code is not None and not failure.evidence.startswith("exit code "):
        where += f", {describe_code(failure.code)}"
    return f"{failure.kind}{where}: {failure.evidence}".removesuffix(": ") + _others(failure)


def _others(failure: Failure) -> str:
    return f" ({failure.others} more worker{'s' * (failure.others > 1)} failed)" if failure.others else ""
