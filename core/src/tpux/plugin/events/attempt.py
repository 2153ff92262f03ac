"""Events of an attempt: the command on the workers, from its start to its end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tpux.plugin.events.event import Event
from tpux.plugin.failures import Failure
from tpux.plugin.machines import JsonValue
from tpux.plugin.progress import Progress


@dataclass(frozen=True, kw_only=True)
class AttemptStarted(Event):
    """The command is about to be started on the workers.

    Attributes:
        attempt: its number, from 1.
        stage: how many times the job was resumed since it last started from scratch.
        resume: whether it resumes from an earlier attempt's output.
        workers: the workers that run the command.
        output_dir: the output directory of this attempt, on the workers.
        previous_output_dir: the output directory that it resumes from; empty if it starts from scratch.
    """

    type = "attempt-started"
    attempt: int
    stage: int
    resume: bool
    workers: tuple[int, ...]
    output_dir: str
    previous_output_dir: str = ""


@dataclass(frozen=True, kw_only=True)
class AttemptRunning(Event):
    """The command was confirmed to have started on all its workers.

    Attributes:
        attempt: the attempt's number.
    """

    type = "attempt-running"
    attempt: int


@dataclass(frozen=True, kw_only=True)
class WorkerEnded(Event):
    """The command has ended on one worker.

    Attributes:
        attempt: the attempt's number.
        worker: the worker's number.
        code: the exit code, 128 + n after signal n; null if it is unknown.
        reason: why it ended, if that is known beyond the exit code.
        ended_at: when it ended by the worker's clock, in seconds since the epoch; null if that is unknown.
        signal: a signal that the machine, not tpux, sent to its processes, such as `TERM` in a shutdown; else empty.
    """

    type = "worker-ended"
    attempt: int
    worker: int
    code: int | None
    reason: str = ""
    ended_at: float | None = None
    signal: str = ""


@dataclass(frozen=True, kw_only=True)
class PreemptionAnnounced(Event):
    """A worker got the notice of a preemption while the command ran; the attempt ends as preempted.

    Attributes:
        attempt: the attempt's number.
        worker: the worker's number.
        evidence: what the worker says about it.
    """

    type = "preemption-announced"
    attempt: int
    worker: int
    evidence: str


@dataclass(frozen=True, kw_only=True)
class AttemptTerminating(Event):
    """The command is about to be terminated on all workers, because the attempt has failed.

    Attributes:
        attempt: the attempt's number.
        failure: why.
    """

    type = "attempt-terminating"
    attempt: int
    failure: Failure


@dataclass(frozen=True, kw_only=True)
class AttemptEnded(Event):
    """The attempt is over on all workers.

    Attributes:
        attempt: the attempt's number.
        failure: what ended it; null if the program succeeded, or was stopped.
        stopped: a user stopped it.
        restarts_reset: it ran long enough that the job gets all its restarts back.
        finished: what shows that the program had finished, where a detector says so; empty otherwise.
        progress: how far the program came, as far as its output says; null if it says nothing.
        repeated_steps: how many steps this attempt had to repeat because an earlier one had failed or was stopped; of
            these the latest one whose output named a step counts. 0 after a rerun.
    """

    type = "attempt-ended"
    attempt: int
    failure: Failure | None
    stopped: bool = False
    restarts_reset: bool = False
    finished: str = ""
    progress: Progress | None = None
    repeated_steps: int = 0


@dataclass(frozen=True, kw_only=True)
class ResourceLow(Event):
    """The memory or a disk of workers is nearly used up while the command runs: written once for each in an attempt.

    Attributes:
        attempt: the attempt's number.
        resource: `memory`, or `disk` with the path where it is mounted.
        workers: on which workers.
        message: how much the first of them has left.
    """

    type = "resource-low"
    attempt: int
    resource: str
    workers: tuple[int, ...]
    message: str


@dataclass(frozen=True, kw_only=True)
class StragglersReported(Event):
    """The program still runs on some workers after it has ended with exit code 0 on the others: once in an attempt.

    It is written when no other worker has ended for `watch.straggler_grace`. The program is not terminated.

    Attributes:
        attempt: the attempt's number.
        workers: on which workers it runs.
        message: the same in words.
        hint: the commands that show what it does, and end it.
    """

    type = "stragglers-reported"
    attempt: int
    workers: tuple[int, ...]
    message: str
    hint: str


@dataclass(frozen=True, kw_only=True)
class Collected(Event):
    """A detector has read what the program left on a worker.

    Attributes:
        attempt: the attempt's number.
        worker: the worker's number.
        plugin: the detector.
        data: what it returned.
    """

    type = "collected"
    attempt: int
    worker: int
    plugin: str
    data: Mapping[str, JsonValue]
