"""One job as its handlers see it: state and config, connections to its workers, and writing events."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from tpux.clock import Clock
from tpux.errors import HostUnreachableError, TpuxError
from tpux.lifecycle import policy
from tpux.lifecycle.job import OpenedJob, open_job
from tpux.plugin.connect import GuardedHost, open_host
from tpux.plugin.events import Event, StateChanged, Waiting
from tpux.plugin.guard import PluginError
from tpux.plugin.host import Host
from tpux.plugin.job import Job
from tpux.plugin.machines import Allocation, JsonValue, Worker
from tpux.plugin.manager import Plugins
from tpux.store import Store, files
from tpux.store.hooks import HookObserver
from tpux.store.record import Record

if TYPE_CHECKING:
    from tpux.lifecycle.run import Watch
    from tpux.lifecycle.setup import SetupRun
    from tpux.lifecycle.stop import Terminator
    from tpux.lifecycle.tasks import TaskGroup

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Next:
    """What follows a step of a job. `advance` writes the transition.

    Attributes:
        change: the change of state; None stays in the current one.
        after: seconds until the next step; None when nothing is left to do.
    """

    change: StateChanged | None = None
    after: float | None = 0.0


@dataclass(frozen=True)
class Unreachable:
    """A worker that does not answer.

    Attributes:
        since: since when, by the monotonic clock.
        error: the last error.
        transport_failed: the transport's plugin failed, which says nothing about the worker.
    """

    since: float
    error: str
    transport_failed: bool = False


class TransportFailedError(HostUnreachableError):
    """The transport's plugin failed. It is called again, without end; the worker is not taken for lost."""


class _Connection(GuardedHost):
    """A connection whose plugin's exceptions, other than TpuxErrors and OSErrors, become `TransportFailedError`."""

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            with super()._guarded():
                yield
        except PluginError as error:
            raise TransportFailedError(error.message) from error


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
        unreachable: the workers that do not answer, by number.
        unknown_since: when the allocator was first unable to say what state the machines are in (monotonic).
        problems: steps in a row that have raised an error.
        plugin_errors: how often each plugin's hook has failed in the job's current state.
        inspect_errors: how often in a row the allocator's `inspect` has failed.
        setup_run: the setup that is under way.
        watch: the polling state of the running attempt.
        terminator: ends the job's processes; set once termination has begun.
        repair: the solvers' steps before the next attempt.
        ended_since: since when the end of the job has waited for listeners (monotonic).
    """

    def __init__(
        self, store: Store, record: Record, plugins: Plugins, clock: Clock, listeners: Listeners | None = None
    ) -> None:
        self.store = store
        self.record = record
        self.plugins = plugins.observed(HookObserver(store, clock, record.directory))
        self.clock = clock
        self.listeners = listeners
        self.state = record.state
        self.unreachable: dict[int, Unreachable] = {}
        self.unknown_since: float | None = None
        self.problems = 0
        self.plugin_errors: Counter[tuple[str, str]] = Counter()
        self.inspect_errors = 0
        self.setup_run: SetupRun | None = None
        self.watch: Watch | None = None
        self.terminator: Terminator | None = None
        self.repair: TaskGroup[None] | None = None
        self.ended_since: float | None = None
        self._hosts: dict[int, Host] = {}

    @cached_property
    def opened(self) -> OpenedJob:
        """The job's config and secrets.

        Raises:
            TpuxError: the config cannot be read, or a plugin that it needs is no longer installed.
        """
        return open_job(self.store, self.record, self.plugins)

    @cached_property
    def job(self) -> Job:
        """The job as plugins see it."""
        return replace(self.opened.job, attempt=self.state.attempt, stage=self.state.stage)

    @cached_property
    def allocation(self) -> Allocation:
        """The machines that the job holds.

        Raises:
            TpuxError: it holds none.
        """
        if (allocation := self.state.machines) is None:
            raise TpuxError("the job holds no machines", where=f"job {self.state.id}")
        return allocation

    def command_workers(self) -> list[Worker]:
        """Return the workers that run the command.

        Raises:
            TpuxError: `command.workers` names a worker that the machines do not have.
        """
        workers = self.allocation.workers
        wanted = self.job.command.workers
        numbers = list(range(len(workers))) if wanted == "all" else [wanted] if isinstance(wanted, int) else wanted
        if missing := [number for number in numbers if number >= len(workers)]:
            raise TpuxError(f"there is no worker {missing[0]}: the machines have {len(workers)}")
        return [workers[number] for number in numbers]

    def output_log(self, worker: int, attempt: int | None = None) -> Path:
        """Return the file of one worker's output, by default of the current attempt."""
        return self.record.logs / f"attempt-{attempt or self.state.attempt}" / f"command_worker_{worker}.log"

    # --- events and logs ------------------------------------------------------------------------

    def write(self, event: Event) -> None:
        """Write an event to disk. The listeners read it from there, in threads of their own.

        Raises:
            OSError: it could not be written.
            TpuxError: it cannot follow on the job's state.
        """
        self.record.write(event, self.clock.now())
        self.state = self.record.state
        for name in ("job", "allocation"):  # they depend on the state
            self.__dict__.pop(name, None)
        if self.listeners is not None:
            self.listeners.notify(self.state.id, self.record.offset)

    def waiting(self, why: str, saved_state: Mapping[str, JsonValue] | None = None) -> None:
        """Write what the job waits for, and the allocator's state, if either has changed."""
        if why != self.state.why or (saved_state is not None and saved_state != self.state.saved_state):
            self.write(Waiting(why=why, saved_state=saved_state))
            self.log("tpu.log", why)

    def log(self, name: str, line: str) -> None:
        """Append a line to one of the job's own logs."""
        from datetime import datetime, timezone

        at = datetime.fromtimestamp(self.clock.now(), timezone.utc).strftime("%Y-%m-%d %H:%M:%S")
        path = self.record.logs / name
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        files.append_output(path, f"{at} {line}\n".encode())

    # --- workers --------------------------------------------------------------------------------

    def host(self, worker: Worker) -> Host:
        """Return the connection to a worker; connect on first use.

        Raises:
            HostUnreachableError: it does not answer.
        """
        if (host := self._hosts.get(worker.index)) is None:
            transport = self.allocation.transport
            try:
                opened = open_host(self.plugins, transport, worker, self.job)
            except PluginError as error:
                raise TransportFailedError(error.message) from error
            host = self._hosts[worker.index] = _Connection(opened, self.plugins, transport)
        return host

    def mark_reachable(self, worker: Worker) -> None:
        """Record that a worker answered."""
        self.unreachable.pop(worker.index, None)

    def mark_unreachable(self, worker: Worker, error: HostUnreachableError) -> float:
        """Record that a worker did not answer, and close the connection.

        Returns:
            Seconds since it was first unreachable; 0 the first time.
        """
        self.disconnect(worker.index)
        now = self.clock.monotonic()
        before = self.unreachable.get(worker.index)
        since = before.since if before else now
        self.unreachable[worker.index] = Unreachable(since, str(error), isinstance(error, TransportFailedError))
        return now - since

    @property
    def transport_problem(self) -> str:
        """What the user is told while the transport's plugin fails; "" if it does not."""
        failed = ((index, lost.error) for index, lost in sorted(self.unreachable.items()) if lost.transport_failed)
        return next((f"worker {index}: {error}; retrying" for index, error in failed), "")

    def disconnect(self, index: int) -> None:
        """Close the connection to a worker, if there is one."""
        if host := self._hosts.pop(index, None):
            try:
                host.close()
            except (OSError, TpuxError):
                _log.debug("closing the connection to worker %d", index, exc_info=True)

    # --- errors of plugins ----------------------------------------------------------------------

    def is_last_try(self, error: TpuxError) -> bool:
        """Return whether the hook that failed is not called again: `policy.PLUGIN_TRIES` says how often it is."""
        if not isinstance(error, PluginError):
            return True
        tries = policy.PLUGIN_TRIES.get(error.hook)
        return tries is not None and self.plugin_errors[error.plugin, error.hook] + 1 >= tries

    # --- what is in memory only -----------------------------------------------------------------

    def discard(self) -> None:
        """Discard the tasks of the state that the job leaves, and keep the connections."""
        self.setup_run = self.watch = self.terminator = self.repair = None

    def reset(self) -> None:
        """Discard the handlers' tasks, and close all connections."""
        self.discard()
        for index in tuple(self._hosts):
            self.disconnect(index)
        self.unreachable.clear()

    def reload(self) -> None:
        """Read the config and the secrets from disk again when they are next used."""
        for name in ("opened", "job"):
            self.__dict__.pop(name, None)
