"""Take one step of a job's life, whatever happened before: a stop, a crash, an upgrade, a preemption.

A user's request comes first. Each state has one phase. It reads the disk and the outside world, does the one next
thing, and returns what follows: the change of state, and the seconds until the next step. Whatever must survive a crash
is written before the action that it announces. docs/architecture.md draws the states.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from types import MappingProxyType

from tpux import descriptors
from tpux.clock import Clock, Deadlines
from tpux.errors import TpuxError
from tpux.lifecycle import transfer
from tpux.lifecycle.allocator_calls import AllocatorCalls
from tpux.lifecycle.change_config import apply_config, discard_config
from tpux.lifecycle.connection import connect_worker
from tpux.lifecycle.decision import deletes_machines, describe_start
from tpux.lifecycle.end import Ended
from tpux.lifecycle.errors import JobErrors
from tpux.lifecycle.loss import lost_after
from tpux.lifecycle.machines import Pending, Provisioning
from tpux.lifecycle.open import (
    InvalidStoredConfigError,
    JobNotOpenedError,
    JobOpener,
    OpenedJob,
    open_job,
    plugins_of,
)
from tpux.lifecycle.recovery import Recovering
from tpux.lifecycle.run import Running
from tpux.lifecycle.setup import SettingUp
from tpux.lifecycle.stop import Stopping, fail, fail_after_termination
from tpux.lifecycle.turn import Listeners, Next, Phase, Turn
from tpux.model.events import (
    ReleaseScheduled,
    RequestAccepted,
    ResolutionUpdated,
    StateChanged,
    WorkerUpdated,
)
from tpux.model.failures import Failure
from tpux.model.host import OpenHost
from tpux.model.job import Job, job_key
from tpux.model.machines import Worker
from tpux.model.states import JobState
from tpux.plugin import spec
from tpux.plugin.guard import AbandonedCallError, UnusablePluginError
from tpux.plugin.manager import Plugins
from tpux.remote.termination import Termination
from tpux.remote.workers import Patience, Scope, Workers
from tpux.store import Store, requests
from tpux.store.hooks import HookObserver
from tpux.store.record import Record
from tpux.store.timers import Timers

_log = logging.getLogger(__name__)
PHASES: dict[JobState, type[Phase]] = {
    "pending": Pending,
    "provisioning": Provisioning,
    "setting-up": SettingUp,
    "running": Running,
    "recovering": Recovering,
    "stopping": Stopping,
    "stopped": Ended,
    "succeeded": Ended,
    "failed": Ended,
}


class JobController:
    """One job, its lock held. All that it keeps in memory can be rebuilt from the disk and the workers.

    Args:
        store: the store that has the job.
        record: the job on disk, its lock held.
        plugins: the installed plugins.
        clock: the current time.
        listeners: are notified of each event; None if only a supervisor's later scan notifies them.
        abandoned: the calls of plugins that are not made again (`JobErrors`).

    Attributes:
        workers: its workers, with their open connections.
        allocator: the calls of its allocator.
        errors: what went wrong in its steps.
        phase: the work of its current state; None before the state's first step.
        plugins: the installed ones, and the files of its config.
        wake: called when another job has got a request; the supervisor sets it.
        reopened: called when its config has changed, with other plugins that may be listeners; the same.
    """

    def __init__(
        self,
        store: Store,
        record: Record,
        plugins: Plugins,
        clock: Clock,
        listeners: Listeners | None = None,
        *,
        abandoned: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.store = store
        self.record = record
        self.errors = JobErrors(record.id, abandoned)
        self._installed = plugins.observed(HookObserver(store, clock, record.directory, "supervisor"))
        self._installed.abandoned_call = lambda name: self.errors.abandoned.get(f"plugin {name}", "")
        self.plugins = plugins_of(record, self._installed)
        self.workers = Workers(self._connect, clock, Timers.load(record.directory, record.state))
        self.allocator = AllocatorCalls(clock)
        self.phase: Phase | None = None
        self.wake: Callable[[], None] = lambda: None
        self.reopened: Callable[[], None] = lambda: None
        self._clock = clock
        self._opener = JobOpener(store, record, self.plugins)
        self._deadlines = Deadlines(clock)
        since = record.state.since if record.state.state == "stopping" else None
        self._termination = Termination(self.workers, since, self._log)
        self._job_to_end: Job | None = None
        self._turn = Turn(
            store=store,
            record=record,
            plugins=self.plugins,
            workers=self.workers,
            allocator=self.allocator,
            termination=self._termination,
            errors=self.errors,
            deadlines=self._deadlines,
            open_=self.open,
            close=self._close,
            open_to_end=self._open_to_end,
            listeners=listeners,
            wake=self._wake,
        )

    def advance(self) -> float | None:
        """Take one step: apply a user's request, or else continue the phase of the job's state.

        Returns:
            Seconds until the next step; None when nothing is left to do.

        Raises:
            TpuxError, OSError: the step could not be taken. The job is as it was, and the step can be taken again.
            StepInterruptedError: the same, after `Workers.interrupt`.
        """
        self.workers.begin_step()
        turn, held = self.begin(), self.allocator.changing
        if held and any(request.action in {"stop", "delete"} for request in requests.pending(turn.record)):
            self.allocator.withdraw()  # a call that has not begun is not waited for
        try:
            self._write_changed_workers(turn)
            turn.request = self._pending_request(turn)
            step = self._apply_request(turn, turn.request) if turn.request else self._continue(turn)
            self._commit(turn, step)
        except BaseException:
            self.restart_phase()  # a generator that raised is exhausted, and would look as if it had completed
            with suppress(Exception):
                if held and self._pending_request(turn):
                    self.allocator.notify()  # it has waited for the answer, and must not wait for the next try
            raise
        finally:
            if turn.state.state == "recovering" and not self.workers.threads.busy() and descriptors.is_short():
                self.workers.close_hosts()  # it waits, and others need them
            self.workers.save_timers(self.record.directory, turn.state.round, turn.state.attempt)
        answered = held and not self.allocator.changing and step.after is not None
        return 0.0 if answered and self._pending_request(turn) else step.after  # which has waited for the answer

    def begin(self) -> Turn:
        """Begin a step, or what follows an error."""
        self._turn.begin()
        return self._turn

    def fail(self, failure: Failure, problem: str) -> None:
        """Fail a job whose steps keep raising errors, whatever its rule says.

        Its programs are terminated first, as before every other end: each further `advance` is a step of that. If that
        keeps raising too, the job fails without it.

        Args:
            failure: why it fails.
            problem: the error of this step.
        """
        turn = self.begin()
        if self.errors.failing is None and turn.state.allocation is not None:
            self.errors.failing = failure
            return
        left = f"; programs may still run on the workers: {problem}" if self.errors.failing is not None else ""
        self._commit(turn, Next(fail(turn, self.errors.failing or failure, left)))

    def restart_phase(self) -> None:
        """Discard all tasks on the workers, after a step that raised an error: the next step begins them again."""
        self.workers.cancel_calls()
        self.workers.close_hosts()
        self._termination.discard()
        if self.phase is not None:
            self.phase.restart()

    @property
    def is_open(self) -> bool:
        """True if the job's config has been read."""
        return self._opener.is_open

    @property
    def is_quiet(self) -> bool:
        """True while the next step only polls a program that runs on, silently."""
        return self.phase is not None and self.phase.is_quiet(self._clock.monotonic())

    # --- parts of a step ------------------------------------------------------------------------

    def _write_changed_workers(self, turn: Turn) -> None:
        """Write an event for each worker that its allocator describes differently by now, as connecting has shown."""
        changed = self.workers.changed
        for index in list(changed):
            worker, machines = changed.pop(index), turn.state.machines
            if machines is not None and index < len(machines.workers) and machines.workers[index] != worker:
                turn.write(WorkerUpdated(worker=worker))

    def _pending_request(self, turn: Turn) -> RequestAccepted | None:
        """Return the user request that is applied next; None if there is none, or none is valid yet.

        A restart waits until the job has stopped, and until a clean-up or a promised release has ended. A stop or
        delete that was requested after it replaces it: the job might wait without end for what the restart waits for,
        or, once it has ended, for a config that is gone.
        No request is applied while another job takes over the machines, or while the allocator requests or releases
        some.
        """
        state = turn.state
        if state.transfer_to or self.allocator.changing:
            return None  # first it is decided who holds the machines
        pending = requests.pending(turn.record)
        delayed = self.phase is not None and self.phase.delays_restart
        if state.ended:
            last = max((request.number for request in pending if request.action in {"stop", "delete"}), default=0)
            pending = [one for one in pending if one.number >= last or one.action not in requests.STARTS]
        if state.state == "stopping" or state.release_promised or delayed:
            pending = [request for request in pending if request.action in {"stop", "delete"}]
        return next(iter(pending), None)

    def _apply_request(self, turn: Turn, request: RequestAccepted) -> Next:
        """Apply a request, and return what follows."""
        if request.action in {"stop", "delete"}:
            return _apply_stop(turn, request)
        if request.action == "transfer":
            turn.request = replace(request, agreed=transfer.is_agreed(turn, request.to))
            return Next()
        self.errors.retry_abandoned()
        state = turn.state
        if state.state == "succeeded" and request.action == "resume":  # before the stop of a restart
            if request.config:
                discard_config(turn.record, request.config)
            return Next()
        why = describe_start(state, from_scratch=state.scratch_after(request.action))
        if state.ended:
            if request.config:
                apply_config(turn, request.config)
            self.workers.reset(keep_connections=state.resume_follows and not request.config)
            turn.reload()
            return Next(StateChanged(to="pending", why="setup requested" if request.action == "setup" else why))
        if state.state == "recovering" and request.action in {"resume", "rerun"}:
            turn.request = replace(request, backoff_skipped=True)  # without waiting for the rest of the backoff
            turn.waiting(why)
        elif self.phase is not None and state.state == "setting-up":
            self.phase.restart()  # it may be that of some modules only
        return Next()

    def _continue(self, turn: Turn) -> Next:
        """Continue the phase of the job's state, or the termination of a job whose steps keep raising errors."""
        if (state := turn.state).machines is not None:
            key = job_key(self.store.id, state.user, state.id)
            self.workers.scope = Scope(key, state.attempt, state.round, self.record.logs)
            if not state.ended:  # the clean-up has its own, so that a job without one need not be opened
                self.workers.patience = _patience(turn)
        self.workers.ending = state.state == "stopping" or state.ended
        if self.errors.failing is not None:
            return fail_after_termination(turn, self.errors.failing)
        if not isinstance(self.phase, PHASES[state.state]):
            self.phase = PHASES[state.state]()
        return self.phase.step(turn)

    def _commit(self, turn: Turn, step: Next) -> None:
        """Write the change of state, and then that the request was applied.

        A supervisor that dies in between applies it again, which changes nothing; the other way round the request would
        be lost.
        """
        if (change := step.change) is not None:
            if change.to == "setting-up":  # all workers are set up with the same answers: nothing is read after this
                for plugin, values in self.record.updates().items():
                    if turn.job.resolved.get(plugin) != values:
                        turn.write(ResolutionUpdated(plugin=plugin, values=values))
            turn.write(change)
            self.phase = None
            self.errors.entered_state()
            self.allocator.leave()
            self.plugins.guard.late.clear()
            self._deadlines.clear()
            if change.to != "stopping":  # there a termination that has begun continues
                self.workers.cancel_calls()
                self._termination.reset()
        if (request := turn.request) is not None:
            before = [one.config for one in requests.pending(turn.record) if one.number < request.number]
            turn.write(request)
            for config in {*before} - {"", turn.state.config}:  # of starts that are not tried any more
                discard_config(turn.record, config)
            requests.remove_applied(turn.record)

    # --- what a turn uses -----------------------------------------------------------------------

    def open(self) -> OpenedJob:
        """Open the job; one that ends or has ended, as far as its config is still valid, and its plugins are usable."""
        state = self.record.state
        try:
            opened = self._opener.open("look" if state.state == "stopping" or state.ended else "run")
        except UnusablePluginError as error:
            if state.state != "stopping" or not self.errors.waited_for_plugin(error, self._clock.monotonic()):
                raise
            if isinstance(error, AbandonedCallError):
                self._log(f"{error.message}; stopping without it")
            opened = self._opener.open("end")
        except InvalidStoredConfigError:
            raise
        except TpuxError as error:
            raise JobNotOpenedError(error.message, where=error.where, hint=error.hint) from error
        return opened

    def _open_to_end(self) -> Job:
        if self._job_to_end is None:
            _log.warning("job %s: only its machines can be released", self.record.id)
            try:
                self._job_to_end = open_job(self.store, self.record, self.plugins, "end").job
            except TpuxError as error:
                raise JobNotOpenedError(error.message, where=error.where, hint=error.hint) from error
        return self._job_to_end

    def _close(self) -> None:
        self.plugins = self._turn.plugins = plugins_of(self.record, self._installed, self.plugins)
        self._opener.reload(self.plugins)
        self._job_to_end = None
        self.reopened()

    def _wake(self) -> None:
        self.wake()

    def _connect(self, worker: Worker, interrupted: threading.Event) -> OpenHost:
        turn, on_change = self._turn, partial(self.workers.changed.__setitem__, worker.index)
        asks = spec.inspect.__name__ not in turn.errors.abandoned
        return connect_worker(
            self.plugins, turn.machines.transport, worker, turn.job, turn.state, interrupted, on_change, asks=asks
        )

    def _log(self, line: str) -> None:
        self.record.log("tpu.log", line, self._clock.now())


def _patience(turn: Turn) -> Patience:
    state, terminates = turn.state, turn.termination.begun or turn.state.state == "stopping"
    try:
        return Patience(
            lost_after(turn),
            one_try=deletes_machines(turn),
            unreachable_once=state.state == "stopping" and state.last_request.get("action") == "delete",
            unreached_once=terminates and not state.attempt_open,
            waits_for_transport=not terminates and state.state != "recovering",
        )
    except TpuxError:  # it cannot be opened, and the step raises that if it has to open it
        return Patience()


def _apply_stop(turn: Turn, request: RequestAccepted) -> Next:
    state, now = turn.state, turn.clock.now()
    if not state.ended:
        return Next() if state.state == "stopping" else Next(StateChanged(to="stopping", why=requests.STOPPING))
    if request.action == "delete":
        if state.requested and turn.job_to_end().tpu.release != "never":
            turn.write(ReleaseScheduled(release_at=now))
    elif request.release and state.requested:
        turn.write(ReleaseScheduled(release_at=now))
    elif request.keep and not state.releasing:
        turn.write(ReleaseScheduled(release_at=None))
    return Next()
