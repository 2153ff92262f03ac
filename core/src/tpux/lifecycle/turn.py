"""One step of a job: what it may read, and the only way to write.

A step reads the disk and the outside world, does the one next thing, and returns what follows. Any call below may raise
what ends the step: a `TpuxError` (a worker does not answer, a plugin failed, the config cannot be read), an `OSError`
(an event or a log cannot be written), or `StepInterruptedError` (the user has stopped the job). The job is then as it
was, and the step is taken again. The docstrings of this package do not repeat that.

What must be known after a crash is written before the action:

| written | before |
|---|---|
| `allocation-requested` | the first `provision`: from now on a release is required |
| the mark `provision-unanswered` | each `provision`; removed once the answer is written |
| `waiting`, with the allocator's saved state | the allocator's next step |
| `attempt-started`, with its workers and output directory | the start of the command |
| `attempt-terminating`, with the failure | the end of the programs by tpux |
| `clean-up-started` | the steps of a clean-up: the next set-up ends those that still run, and sets all up again |
| `state-changed` to recovering, with the action and its backoff | a restart |
| `state-changed` to an end, with the time of the release | the release, which `release-started` begins |

So an action may be repeated, and must be safe to repeat: `remote/process.py` starts no run twice, and an allocator gets
the same request name again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from tpux.clock import Clock, Deadlines
from tpux.errors import TpuxError
from tpux.lifecycle.allocator_calls import AllocatorCalls
from tpux.lifecycle.errors import JobErrors
from tpux.lifecycle.open import OpenedJob, with_tpu
from tpux.model.events import Event, RequestAccepted, StateChanged, Waiting
from tpux.model.job import Job
from tpux.model.json import JsonValue
from tpux.model.machines import Allocation
from tpux.plugin.manager import Plugins
from tpux.remote.termination import Termination
from tpux.remote.workers import Workers
from tpux.store import Store
from tpux.store.record import Record
from tpux.store.state import State


@dataclass(frozen=True)
class Next:
    """What follows a step. `advance` writes the change of state.

    Attributes:
        change: the change of state; None stays in the current one.
        after: seconds until the next step; None when nothing is left to do.
    """

    change: StateChanged | None = None
    after: float | None = 0.0


class Listeners(Protocol):
    """The listeners, as a job uses them; the supervisor implements it. No method waits for one."""

    def notify(self, job: str, end: int) -> None:
        """Make the job's events known, up to this offset."""

    def behind(self, job: str) -> list[str]:
        """Return the listeners that have not received all of the job's events yet."""

    def drop_job(self, job: str) -> None:
        """Deliver no more events of the job: its record is about to be removed."""


class Phase:
    """The work of one state of a job. Its memory may be lost after any step: a crash, an upgrade, an error.

    Attributes:
        delays_restart: a resume or rerun has to wait for what is under way.
    """

    delays_restart = False

    def step(self, turn: Turn) -> Next:
        """Do the next thing, and return what follows."""
        raise NotImplementedError

    def restart(self) -> None:
        """Discard the tasks on the workers, as after an error: a generator that has raised looks complete."""

    def is_quiet(self, now: float) -> bool:
        """Return whether the next step only polls a program that runs on, silently, on workers that answer at once.

        Args:
            now: the time, by the monotonic clock.
        """
        del now
        return False


class Turn:
    """One step of one job: what it may read, and the only way to write.

    A job has one, which each step begins anew, so that a task that outlasts a step sees the present, in any thread.

    Args:
        store: the store that has the job.
        record: the job on disk, its lock held.
        plugins: the installed plugins.
        workers: the workers, with their open connections.
        allocator: the calls of its allocator.
        termination: ends what the job runs.
        errors: what went wrong in earlier steps.
        deadlines: how long it is until deadlines in real time.
        open_: reads the config and the secrets, when they are first used.
        close: makes `open_` read them again.
        open_to_end: returns the job as far as its config is still valid.
        listeners: are notified of each event; None if only a supervisor's later scan notifies them.
        wake: is called when another job has got a request.

    Attributes:
        state: the job as of the last event.
        job: the job as plugins see it; raises why it cannot be opened.
        opened: the config and the secrets; the same.
        machines: the machines that the job holds; raises if it holds none.
        request: the user's request that is applied in this step.
        number: the job's id as a user types it.
    """

    state: State
    job: Job
    opened: OpenedJob
    machines: Allocation

    def __init__(
        self,
        *,
        store: Store,
        record: Record,
        plugins: Plugins,
        workers: Workers,
        allocator: AllocatorCalls,
        termination: Termination,
        errors: JobErrors,
        deadlines: Deadlines,
        open_: Callable[[], OpenedJob],
        close: Callable[[], None],
        open_to_end: Callable[[], Job],
        listeners: Listeners | None,
        wake: Callable[[], None],
    ) -> None:
        self.store = store
        self.record = record
        self.plugins = plugins
        self.workers = workers
        self.allocator = allocator
        self.termination = termination
        self.errors = errors
        self.deadlines = deadlines
        self.listeners = listeners
        self.wake = wake
        self.request: RequestAccepted | None = None
        self.clock: Clock = workers.clock
        self.number = int(record.id)
        self._open = open_
        self._close = close
        self._open_to_end = open_to_end
        self.begin()

    def begin(self) -> None:
        """Begin a step: what the last one has read is read again when it is used."""
        self.request = None
        for name in ("opened", "job"):
            vars(self).pop(name, None)
        self._follow_state()

    def reload(self) -> None:
        """Read the config and the secrets from disk again."""
        self._close()
        for name in ("opened", "job"):
            vars(self).pop(name, None)

    def _follow_state(self) -> None:
        self.state = state = self.record.state
        try:
            machines = state.machines
        except Exception:  # noqa: BLE001  (it is raised where the machines are used)
            machines = None
        if machines is None:
            vars(self).pop("machines", None)
        else:
            self.machines = machines  # in one assignment: other threads read it
        if (opened := vars(self).get("opened")) is not None:
            self.job = _describe(opened.job, state)

    if not TYPE_CHECKING:  # a misspelled attribute is an error of the type checker

        def __getattr__(self, name: str) -> object:
            """Open the job when it is first used; raise why `job`, `opened` or `machines` is not there."""
            if name in {"job", "opened"}:
                opened = self._open()
                job = _describe(opened.job, self.state)
                self.job, self.opened = job, opened
                return job if name == "job" else opened
            if name == "machines":
                if (machines := self.state.machines) is not None:
                    return machines
                raise TpuxError("the job holds no machines", where=f"job {self.state.id}")
            raise AttributeError(name)

    def job_to_end(self) -> Job:
        """Return the job as its allocator sees it, also where the rest of the config is no longer valid."""
        try:
            return self.job
        except TpuxError:
            return self._open_to_end()

    def write(self, event: Event) -> None:
        """Write an event to disk. The listeners read it from there, in threads of their own.

        Raises:
            OSError: it could not be written.
            TpuxError: it cannot follow on the job's state.
        """
        self.record.write(event, self.clock.now())
        self._follow_state()
        if self.listeners is not None:
            self.listeners.notify(self.state.id, self.record.offset)

    def waiting(
        self,
        why: str,
        saved_state: Mapping[str, JsonValue] | None = None,
        until: float | None = None,
        hint: str = "",
    ) -> None:
        """Write what the job waits for, and the allocator's state, if either has changed.

        Args:
            why: what it waits for.
            saved_state: the allocator's state; None leaves it as it was.
            until: for a release that nothing can hasten: when it ends, in seconds since the epoch.
            hint: what the user must do before the job can continue, or can do about it.
        """
        changed = (why, hint) != (self.state.why, self.state.hint)
        if changed or (saved_state is not None and saved_state != self.state.saved_state):
            self.write(Waiting(why=why, saved_state=saved_state, until=until, hint=hint))
            self.log(why)

    def log(self, line: str) -> None:
        """Append a line to the job's log `tpu.log`."""
        self.record.log("tpu.log", line, self.clock.now())


def _describe(job: Job, state: State) -> Job:
    """Return a job as plugins see it now.

    The attempt, the stage, the answers of `resolve`, and what its rule has chosen of the section `tpu` follow its
    state.
    """
    resolved = {**job.resolved, **state.resolved}
    return replace(
        with_tpu(job, state.tpu), attempt=state.attempt, stage=state.stage, resolved=resolved, token=state.token
    )
