"""One job as its handlers see it: state and config, what is kept in memory, and writing events."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Protocol

from tpux.clock import Clock, Deadlines, ObservedTime
from tpux.errors import TpuxError
from tpux.lifecycle import policy
from tpux.lifecycle.computed import Computed
from tpux.lifecycle.connection import connect_worker
from tpux.lifecycle.cut_off import CUT_OFF, read_cut_off
from tpux.lifecycle.job import (
    InvalidStoredConfigError,
    JobNotOpenedError,
    OpenedJob,
    open_job,
    open_leniently,
    open_to_end,
)
from tpux.model.events import Event, ResolutionUpdated, StateChanged, Waiting, WorkerUpdated
from tpux.model.failures import Failure
from tpux.model.host import Host
from tpux.model.job import Job
from tpux.model.json import JsonValue
from tpux.model.machines import Allocation, Worker
from tpux.plugin.guard import CutOffPluginError, PluginError, UnusablePluginError
from tpux.plugin.manager import Plugins
from tpux.remote.connections import Connections
from tpux.remote.calls import WorkerThreads
from tpux.store import Store
from tpux.store.hooks import HookObserver
from tpux.store.observations import Observations
from tpux.store.record import Record

if TYPE_CHECKING:
    from tpux.lifecycle.clean_up import CleanUp
    from tpux.lifecycle.restart import SolverRun
    from tpux.lifecycle.run import Watch
    from tpux.lifecycle.setup import SetupRun
    from tpux.lifecycle.stop import Terminator

_log = logging.getLogger(__name__)
PLUGIN_TIMEOUT = 30.0
"""Seconds for which a job that is stopping waits for a plugin that is not usable: it may be being upgraded."""


@dataclass(frozen=True)
class Next:
    """What follows a step of a job. `advance` writes the transition.

    Attributes:
        change: the change of state; None stays in the current one.
        after: seconds until the next step; None when nothing is left to do.
    """

    change: StateChanged | None = None
    after: float | None = 0.0


class Listeners(Protocol):
    """What a job tells the listeners, and asks about them; the supervisor implements it. No method waits for one."""

    def notify(self, job: str, end: int) -> None:
        """Make the job's events known, up to this offset."""

    def behind(self, job: str) -> list[str]:
        """Return the listeners that have not received all of the job's events yet."""

    def forget(self, job: str) -> None:
        """Give up on the job's events, because its record is about to be removed."""


class JobContext:
    """One job, its lock held. All that it keeps in memory can be rebuilt from the disk and the workers.

    Args:
        store: the store that has the job.
        record: the job on disk, its lock held.
        plugins: the installed plugins.
        clock: the current time.
        listeners: are notified of each event; None if only a supervisor's later scan notifies them.

    Attributes:
        state: the job as of the last event.
        connections: the open connections to its workers, and which workers do not answer.
        observed: for how long conditions were observed to last, such as that a worker is unreachable.
        deadlines: how long it is until deadlines in real time.
        problems: steps in a row that have raised an error.
        last_error: the last of them.
        unwritten: what the job's `why` would be if it could be written; "" if nothing is missing.
        giving_up: the failure of a job whose steps keep raising errors, while its programs are terminated.
        plugin_errors: how often each plugin's hook has failed in the job's current state.
        unanswered: why a detector could not be asked whether the program finished, by its name and the worker.
        inspect_errors: how often in a row the allocator's `inspect` has failed.
        short_polls: how often in a row the allocator requested its next call sooner than `allocation.SHORTEST_POLL`.
        setup_run: the setup that is under way.
        watch: the polling state of the running attempt.
        terminator: ends the job's processes; set once termination has begun.
        terminating_since: since when this supervisor, or one that has died, may have been ending the programs, in
            seconds since the epoch; None if none has.
        repair: the solvers' steps before the next attempt.
        clean_up: the modules' steps after the job's end.
        cleaned_up: which clean-ups are done: of a job that has ended (False), and of one whose machines are released.
        wake: called when another job has got a request; the supervisor sets it.
        ended_since: since when the end of the job has waited for listeners (monotonic).
        cut_off: the message about each call that a stop or delete has cut off, by `cut_off_key`.
    """

    def __init__(
        self, store: Store, record: Record, plugins: Plugins, clock: Clock, listeners: Listeners | None = None
    ) -> None:
        self.store = store
        self.record = record
        self.plugins = plugins.observed(HookObserver(store, clock, record.directory))
        self.cut_off = read_cut_off(record.directory)
        self.plugins.cut_off = lambda name: self.cut_off.get(f"plugin {name}", "")
        self.clock = clock
        self.listeners = listeners
        self.state = record.state
        self.deadlines = Deadlines(clock)
        self._saved = Observations.load(record.directory, self.state)
        self.observed = ObservedTime(clock, self._saved.seconds)
        self.connections = Connections(self._connect, self.observed, WorkerThreads(clock), self._saved.reached)
        self.problems = 0
        self.last_error = ""
        self.unwritten = ""
        self.giving_up: Failure | None = None
        self.plugin_errors: Counter[tuple[str, str]] = Counter()
        self.unanswered: dict[tuple[str, int | None], str] = {}
        self.inspect_errors = 0
        self.short_polls = 0
        self.setup_run: SetupRun | None = None
        self.watch: Watch | None = None
        self.terminator: Terminator | None = None
        self.terminating_since = self.state.since if self.state.state == "stopping" else None
        self.repair: SolverRun | None = None
        self.clean_up: CleanUp | None = None
        self.cleaned_up = set[bool]()
        self.ended_since: float | None = None
        self.wake: Callable[[], None] = lambda: None
        self._unusable_since: float | None = None
        self._changed_workers: dict[int, Worker] = {}
        # Listeners and calls of workers use these too, in threads of their own.
        self._opened = Computed(self._open)
        self._job = Computed(self._describe)
        self._releasable: Job | None = None

    @property
    def opened(self) -> OpenedJob:
        """The job's config and secrets; of a job that ends or has ended, as far as they are still valid.

        Raises:
            JobNotOpenedError: the config cannot be read.
            UnusablePluginError: a plugin that it needs is no longer installed, or broken.
        """
        return self._opened.get()

    def _open(self) -> OpenedJob:
        ends = self.state.state == "stopping" or self.state.ended
        try:
            return (open_leniently if ends else open_job)(self.store, self.record, self.plugins)
        except UnusablePluginError as error:
            if not self.may_leave_out(error):
                raise
            return open_to_end(self.store, self.record, self.plugins)
        except InvalidStoredConfigError:
            raise
        except TpuxError as error:
            raise JobNotOpenedError(error.message, where=error.where, hint=error.hint) from error

    def may_leave_out(self, error: UnusablePluginError) -> bool:
        """Return whether to continue without an unusable plugin: the job is stopping, and has waited `PLUGIN_TIMEOUT`.

        Meanwhile a plugin that is just being upgraded is usable again, in a new process of the supervisor.
        """
        if self.state.state != "stopping":
            return False
        if isinstance(error, CutOffPluginError):
            self.log("tpu.log", f"{error.message}; stopping without it")
            return True
        now = self.clock.monotonic()
        self._unusable_since = now if self._unusable_since is None else self._unusable_since
        if now - self._unusable_since < PLUGIN_TIMEOUT:
            return False
        _log.warning("job %s: stopping without a plugin: %s", self.state.id, error.message)
        return True

    @property
    def is_open(self) -> bool:
        """True if the job's config has been read."""
        return self._opened.is_kept

    @property
    def job(self) -> Job:
        """The job as plugins see it."""
        return self._job.get()

    def _describe(self) -> Job:
        job, state = self.opened.job, self.state
        resolved = {**job.resolved, **state.resolved}
        return replace(job, attempt=state.attempt, stage=state.stage, resolved=resolved, token=state.token)

    @property
    def releasable_job(self) -> Job:
        """The job as its allocator sees it, also where the rest of the config is no longer valid.

        Raises:
            JobNotOpenedError: the config cannot be read.
        """
        if self._releasable is not None:
            return self._releasable
        try:
            return self.job
        except TpuxError as error:
            _log.warning("job %s: only its machines can be released: %s", self.state.id, error)
        try:
            self._releasable = open_to_end(self.store, self.record, self.plugins).job
        except TpuxError as error:
            raise JobNotOpenedError(error.message, where=error.where, hint=error.hint) from error
        return self._releasable

    @property
    def allocation(self) -> Allocation:
        """The machines that the job holds.

        Raises:
            TpuxError: it holds none.
        """
        if (allocation := self.state.machines) is None:
            raise TpuxError("the job holds no machines", where=f"job {self.state.id}")
        return allocation

    # --- events and logs ------------------------------------------------------------------------

    def write(self, event: Event) -> None:
        """Write an event to disk. The listeners read it from there, in threads of their own.

        Raises:
            OSError: it could not be written.
            TpuxError: it cannot follow on the job's state.
        """
        self.record.write(event, self.clock.now())
        self.state = self.record.state
        self._job.clear()  # it depends on the state
        if self.listeners is not None:
            self.listeners.notify(self.state.id, self.record.offset)

    def enter(self, change: StateChanged) -> None:
        """Write a change of state, and discard the tasks of the state that the job leaves; connections are kept."""
        if change.to == "setting-up":  # all workers are set up with the same answers: nothing is read after this
            for plugin, values in self.record.updates().items():
                if self.job.resolved.get(plugin) != values:
                    self.write(ResolutionUpdated(plugin=plugin, values=values))
        self.write(change)
        self.giving_up = None
        self.cleaned_up.clear()
        self.plugin_errors.clear()
        self.unanswered.clear()
        self.deadlines.clear()
        if change.to != "stopping":  # there a termination that has begun continues
            self.terminating_since = None
            self._discard()
        elif self.repair is not None:  # begun after a termination, and to be terminated too
            self.repair = self.terminator = None

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
            until: when a release ends that can only be waited for, in seconds since the epoch.
            hint: what the user must do before the job can continue, or can do about it.
        """
        changed = (why, hint) != (self.state.why, self.state.hint)
        if changed or (saved_state is not None and saved_state != self.state.saved_state):
            self.write(Waiting(why=why, saved_state=saved_state, until=until, hint=hint))
            self.log("tpu.log", why)

    def log(self, name: str, line: str) -> None:
        """Append a line to one of the job's own logs."""
        self.record.log(name, line, self.clock.now())

    # --- plugins --------------------------------------------------------------------------------

    def _connect(self, worker: Worker, interrupted: threading.Event) -> Host:
        transport = self.allocation.transport
        on_change = partial(self._changed_workers.__setitem__, worker.index)
        return connect_worker(self.plugins, transport, worker, self.job, self.state, interrupted, on_change)

    def write_changed_workers(self) -> None:
        """Write an event for each worker that its allocator describes differently by now, as connecting has shown."""
        for index in list(self._changed_workers):
            worker, machines = self._changed_workers.pop(index), self.state.machines
            if machines is not None and index < len(machines.workers) and machines.workers[index] != worker:
                self.write(WorkerUpdated(worker=worker))

    def is_last_try(self, error: TpuxError) -> bool:
        """Return whether the hook that failed is not called again: `policy.PLUGIN_TRIES` says how often it is."""
        if not isinstance(error, PluginError):
            return True
        tries = policy.PLUGIN_TRIES.get(error.hook)
        return tries is not None and self.plugin_errors[error.plugin, error.hook] + 1 >= tries

    def forget_cut_off(self, plugin: str = "") -> None:
        """Call again what an earlier stop or delete has cut off.

        Args:
            plugin: call this plugin again, until the process is replaced; by default everything.
        """
        if not plugin:
            (self.record.directory / CUT_OFF).unlink(missing_ok=True)
            self.cut_off.clear()
        elif self.cut_off.pop(f"plugin {plugin}", ""):
            self.reload()

    def _discard(self) -> None:
        self.connections.give_up_calls()
        self.setup_run = self.watch = self.terminator = self.repair = self.clean_up = None

    @property
    def is_quiet(self) -> bool:
        """True while the next step only asks whether the command runs on, silently, on workers that answer at once."""
        return self.watch is not None and self.watch.quiet_until > self.clock.monotonic()

    def restart_step(self) -> None:
        """Discard the handlers' tasks and close all connections, after a step that raised an error."""
        self._discard()
        self.connections.close_hosts()

    def reset(self, *, keep_connections: bool = False) -> None:
        """Discard the handlers' tasks, close all connections, and count the time of all observations from 0 again."""
        self._discard()
        if not keep_connections:
            self.connections.close_all()
        self.observed.clear()

    def was_reached(self, worker: int) -> bool:
        """Return whether a worker has answered since the machines were allocated."""
        run = self.state.run
        return worker in self.connections.reached or (run.running and worker in run.workers)

    def save_observations(self) -> None:
        """Write what a later supervisor must know about the workers, if it has changed enough."""
        round_, attempt, seconds = self.state.round, self.state.attempt, self.observed.seconds()
        current = Observations(round_, attempt, seconds, frozenset(self.connections.reached))
        self._saved = self._saved.replace_with(current, self.record.directory)

    def forget_observations(self) -> None:
        """Forget all that was observed of the workers, also on the disk.

        Raises:
            OSError: the file cannot be removed.
        """
        self.observed.clear()
        self.connections.reached.clear()
        self._changed_workers.clear()
        Observations.remove(self.record.directory)
        self._saved = Observations()

    def reload(self) -> None:
        """Read the config and the secrets from disk again when they are next used."""
        self._releasable = None
        self._opened.clear()
        self._job.clear()  # after what it depends on
