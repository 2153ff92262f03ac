"""Which job gets its next turn, and when: a queue of jobs by due time; `turns` has the threads."""

from __future__ import annotations

import heapq
import logging
import math
import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial

from tpux import descriptors
from tpux.clock import Clock
from tpux.errors import TpuxError
from tpux.lifecycle import allocator_calls
from tpux.lifecycle.advance import JobController
from tpux.lifecycle.allocator_calls import AllocatorCall
from tpux.lifecycle.errors import call_key
from tpux.lifecycle.open import JobOpener, plugins_of
from tpux.model.job import Job
from tpux.plugin.manager import Plugins
from tpux.remote.calls import Call, StepInterruptedError
from tpux.store import Store, open_jobs, requests
from tpux.store.hooks import HookObserver
from tpux.store.locks import Lock, UnusableLocksError
from tpux.store.record import Record
from tpux.store.state import State
from tpux.supervisor import heartbeat, orphans, report
from tpux.supervisor.errors import ERROR_BACKOFF, OS_ERROR_BACKOFF, handle_error, retry
from tpux.supervisor.files import Files
from tpux.supervisor.handover import Abandoned, Handover
from tpux.supervisor.listeners import Listeners
from tpux.supervisor.lockfile import describe
from tpux.supervisor.server import Server
from tpux.supervisor.turns import BLOCKED_AFTER, Turn, TurnPool

_log = logging.getLogger(__name__)

POLL_EVERY = 0.1
"""Seconds between two looks at the wake file."""
LOOK_AFTER_EVERY = 0.5
"""Seconds between two looks for turns that are blocked, and at the installation: they look at every job."""
SLACK = 0.1
"""Turns due in more than four times this are rounded up to a multiple of it, so that many jobs cost few wake-ups."""
LONGEST_DELAY = 60.0
"""Maximum seconds between two turns of a job. The queue uses monotonic time, but a job may wait for a wall time, which
also advances during a suspend and changes when the clock is set."""
LOCK_TIMEOUT = 2.0
"""Seconds that a new supervisor tries to take the lock: a command may be testing it at this moment."""
UNREADABLE_RETRY = 5.0
"""Seconds until a job is read again whose files the system could not read."""
END_TIMEOUT = 10.0
"""Real seconds that turns have to end when the supervisor is stopped. A job can be continued from any moment."""


class Supervisor:
    """Drives the jobs of one user.

    Args:
        store: the store of the jobs.
        clock: tells the time and waits.
        handover: replaces this process by a new one; None if that is not possible.
    """

    def __init__(self, store: Store, clock: Clock, handover: Handover | None = None) -> None:
        self._store = store
        self._clock = clock
        self._handover = handover
        self._pool = TurnPool(self._turn, clock)
        self._report = report.Report(os.getpid())
        self._plugins = Plugins()
        self._files = Files(store.supervisor)
        observer = partial(HookObserver, store, clock, process="supervisor")
        self._listeners = Listeners(self._plugins, clock, self._files, observer)
        self._stop, self._wake_file = os.fspath(self._files.stop), os.fspath(self._files.wake)
        self._lock = Lock(self._files.lock)
        self._server = Server(store.socket, self._find, clock)
        self._watchdog = heartbeat.Watchdog(self._files.heartbeat, self._check_now, self._revive)
        self._wake = threading.Event()
        self._guard = threading.Lock()
        self._controllers: dict[str, JobController] = {}
        self._queue: list[tuple[float, str]] = []
        self._due: dict[str, float] = {}
        self._busy: set[str] = set()
        self._again: set[str] = set()
        self._seen: dict[str, int] = {}
        self._scan_again = False
        self._scan_at = math.inf
        self._unreadable: dict[str, str] = {}
        self._waiting: dict[str, str] = {}
        self._asleep_until = 0.0
        self._end_requested = self._stopped = False
        self._woken = 0
        self._searched = False
        self._search_at = clock.monotonic()
        self._look_after_at = 0.0

    def run(self, lock: int | None = None) -> int:
        """Drive the jobs until all are done or the supervisor is shut down.

        After it has released its lock it scans once more, and takes the lock again if there is a new job: a command
        that found the lock held had written its request before. If a later command has withdrawn the user's stop while
        this process was ending, another one replaces it.

        Args:
            lock: the descriptor of the lock, if the process that this one replaces has held it.
        """
        while self._acquire_lock(lock):
            lock = None
            _log.info("started, process %d", os.getpid())
            heartbeat.beat(self._files.heartbeat)
            report.write(self._files.report, self._report)
            self._server.start()
            self._drive()
            self._server.close("it was stopped" if self._end_requested else "its jobs have ended")
            allocator_calls.pause(self._end_requested)
            self._listeners.stop()
            if shutdown := self._end_requested:
                _log.info("ending%s", ", stopped by the user" if self._stopped else "")
                self._end_turns()
            report.write(self._files.report, report.Report())
            self._release_lock()
            if shutdown or not self._has_work():
                break
        self._watchdog.end()
        for job, controller in self._controllers.items():
            if job not in self._busy and not controller.allocator.running():
                controller.record.lock.release()
        allocator_calls.pause(False)
        _log.info("ended")
        if self._stopped and not self._is_unwanted():
            os.execv(sys.executable, [sys.executable, "-m", "tpux.supervisor"])  # noqa: S606  (no shell is meant)
        return 0

    def _end_turns(self) -> None:
        """Begin nothing more, and wait for the turns and the calls of allocators that have begun."""
        deadline = time.monotonic() + END_TIMEOUT
        allocator_calls.pause(True)
        self._pool.end(END_TIMEOUT)
        for controller in self._controllers.values():
            controller.allocator.withdraw()
        while allocator_calls.running() and time.monotonic() < deadline:
            time.sleep(POLL_EVERY)
        for turn in self._pool.running():
            _log.warning("job %s: its turn is ended with this process: %s", turn.job, turn.describe())

    def _acquire_lock(self, inherited: int | None) -> bool:
        """Take the supervisor's lock and describe this process in it.

        Returns:
            False if another process holds it, or the user has stopped the supervisor: the next start brings one with
            the environment of that shell.
        """
        deadline = time.monotonic() + LOCK_TIMEOUT
        while not (inherited is not None and self._lock.take_over(inherited)) and not retry(self._lock.acquire):
            if time.monotonic() > deadline or self._is_unwanted():
                return False
            time.sleep(0.05)
        if inherited is None and self._is_unwanted():
            self._lock.release()
            # Who has withdrawn the stop meanwhile may have found the lock held, and started none.
            return not self._is_unwanted() and self._acquire_lock(None)
        try:
            describe(self._lock)
        except OSError as error:  # a full disk: only `supervisor status` misses it
            _log.warning("cannot write the supervisor's status into its lock file: %s", error)
        return True

    def _is_unwanted(self) -> bool:
        return os.path.exists(self._stop)  # noqa: PTH110  (a string)

    def _release_lock(self) -> None:
        """Release the lock; its file then says that nobody holds it."""
        with suppress(OSError):
            self._lock.annotate("\n")  # not empty: the next supervisor can describe itself on a full disk too
        self._lock.release()

    def _drive(self) -> None:
        """Give the jobs their turns until all are done or the supervisor is shut down.

        An error of the supervisor's own files is logged, and all that the loop does is tried again: nobody else would
        continue the jobs.
        """
        try:
            self._store.purge()
        except (OSError, TpuxError) as error:  # the next supervisor does it
            _log.warning("cannot remove what is left of jobs: %s", error)
        self._listeners.start()
        self._scan_again = True
        problems, last = 0, ""
        while True:
            try:
                if not self._drive_once():
                    return
                problems = 0
            except Exception as error:  # noqa: BLE001  (also those of a bug)
                if (text := f"{type(error).__name__}: {error}") != last or not problems:
                    _log.error("the supervisor's own work has failed, and is tried again: %s", text, exc_info=error)
                last, problems = text, problems + 1
                self._scan_again = True
                self._clock.wait(self._wake, OS_ERROR_BACKOFF.delay(problems - 1))

    def _drive_once(self) -> bool:
        """Look for new requests, start the turns that are due, and wait. Returns False if the supervisor is to end."""
        self._watchdog.beat()
        if self._shutdown_requested():
            self._end_requested = True
            return False
        if self._clock.monotonic() >= self._search_at:
            interval = orphans.INTERVAL if self._searched else orphans.INTERVAL_AT_START
            report.rotate_log(self._files.log)
            orphans.search_in_background(
                self._store, [each.record.state for each in self._controllers.values()], interval
            )
            self._searched, self._search_at = True, self._clock.monotonic() + LONGEST_DELAY
        touched, due = _mtime(self._wake_file), self._clock.monotonic() >= self._scan_at
        if touched != self._woken or self._scan_again or due:
            self._woken = touched
            self._scan()
        self._listeners.check()
        if (now := self._clock.monotonic()) >= self._look_after_at or self._pool.paused:
            self._look_after_at = now + LOOK_AFTER_EVERY
            self._look_after_turns()
        with self._guard:
            idle = not self._controllers and not self._scan_again and self._scan_at == math.inf
            if idle and self._listeners.may_exit() and not self._server.busy:
                return False
            delay = POLL_EVERY if self._pool.paused else min(self._dispatch(), POLL_EVERY)
            self._asleep_until = self._clock.monotonic() + delay
        self._clock.wait(self._wake, delay)
        self._wake.clear()
        return True

    def _has_work(self) -> bool:
        """Return whether there is a job to drive, after the lock was released; also if that cannot be read."""
        try:
            return self._scan()
        except OSError as error:
            _log.error("the jobs cannot be read: %s", error)
            return True

    def _look_after_turns(self) -> None:
        """Report blocked turns, and replace this process if its installation has changed or a blocked turn is to end.

        The pool is paused while no more turns may begin.
        """
        blocked = {turn.job: turn for turn in [*self._pool.blocked(), *self._blocked_calls()]}
        problem, calling = "", False
        if self._handover is not None:
            opened = [job for job, controller in list(self._controllers.items()) if controller.is_open]
            to_end = self._to_end(blocked.values())
            self._handover.update(opened, to_end.values())
            called = [job for job, each in list(self._controllers.items()) if each.allocator.running()]
            calling = any(job not in blocked for job in called)
            begun = dict.fromkeys([*(turn.job for turn in self._pool.running()), *called])
            running = [job for job in begun if job not in blocked]
            if self._handover.draining and (not running or self._handover.drained):
                abandoned = self._abandoned([blocked[job] for job in to_end])
                self._server.close("it is replaced by a new one")
                self._handover.replace_process(self._lock, [*running, *blocked], abandoned)
                self._server.start()
            problem = self._handover.problem
        for job in blocked.keys() - self._report.blocked.keys():
            _log.warning("job %s: %s; other jobs continue", job, blocked[job].describe())
        texts = {job: self._report.blocked.get(job) or turn.describe() for job, turn in blocked.items()}
        unwritten = self._waiting | {
            job: controller.errors.unwritten
            for job, controller in list(self._controllers.items())
            if controller.errors.unwritten
        }
        now = report.Report(os.getpid(), texts, unwritten, problem)
        if now != self._report:
            self._report = now
            report.write(self._files.report, now)
        self._server.look_after(self._controllers)
        draining = self._handover is not None and self._handover.draining
        allocator_calls.pause(draining)
        self._pool.paused = draining and not calling  # an API may take a minute to answer, and turns do not wait for it

    def _blocked_calls(self) -> Iterator[Turn]:
        """Yield, as turns, the calls of workers and allocators that last for `BLOCKED_AFTER`; the turns continue."""
        now = self._clock.monotonic()
        for job, controller in list(self._controllers.items()):
            begun: list[Call | AllocatorCall] = [*controller.workers.threads.running()]
            begun += filter(None, [controller.allocator.running()])
            if calls := [call for call in begun if now - (call.started or now) > BLOCKED_AFTER]:
                plugins = {key: each for call in calls for key, each in call.plugins.copy().items()}
                yield Turn(job, now, plugins, blocked=True, what=calls[0].describe())

    def _to_end(self, blocked: Iterable[Turn]) -> dict[str, str]:
        """Return by job what the process is to be replaced for: the stop or deletion of a job whose turn is blocked.

        It is the id of a pending request, or that of the request being carried out with the hooks that block it.
        """
        found = {}
        for turn in blocked:
            if (controller := self._controllers.get(turn.job)) is None:  # its turn has returned just now
                continue
            if pending := _pending_end(controller):
                found[turn.job] = pending
            elif _is_ending(controller):
                hooks = sorted({call_key(call) for call in turn.calls.copy().values()})
                found[turn.job] = f"{turn.job}:{controller.record.state.last_request_number}:{'+'.join(hooks)}"
        return found

    def _abandoned(self, turns: Iterable[Turn]) -> Abandoned:
        """Return the calls that the next process leaves out: those that a stop or delete ends, and earlier ones."""
        found = {job: {**controller.errors.abandoned} for job, controller in list(self._controllers.items())}
        for turn in turns:
            found[turn.job] |= {call_key(call): str(call) for call in turn.calls.copy().values()}
        return {job: calls for job, calls in found.items() if calls}

    def _check_now(self) -> str:
        """Return why this process cannot be replaced, "" if it can; in the watchdog's thread."""
        opened = [job for job, controller in list(self._controllers.items()) if controller.is_open]
        return "it cannot be" if self._handover is None else self._handover.check_now(opened)

    def _revive(self) -> str:
        """Replace this process, in the watchdog's thread. Returns why that was not possible."""
        return "it cannot be" if self._handover is None else self._handover.revive(self._lock, self._abandoned([]))

    def _find(self, job: str) -> tuple[Job, Plugins, State] | None:
        """Return a job that is driven, with its plugins and its state; in any thread."""
        if (controller := self._controllers.get(job)) is None:
            return None
        return controller.open().job, controller.plugins, controller.record.state

    def _shutdown_requested(self) -> bool:
        """Return whether the user stopped the supervisor, or its store was removed."""
        self._stopped = os.path.exists(self._stop)  # noqa: PTH110  (called often)
        return self._stopped or not self._lock.still_linked

    def _scan(self) -> bool:
        """Adopt each job that is not done, and give a turn to each that has a new request.

        Returns:
            True if there is any job to drive.
        """
        self._scan_again, self._scan_at = False, math.inf
        for job in self._store.ids():
            self._watchdog.beat()
            record = self._store.record(job)
            try:
                latest = requests.latest(record.directory)
            except OSError as error:
                self._cannot_read(job, error)
                continue
            if self._seen.get(job) == latest:
                continue
            with self._guard:
                if job in self._controllers:
                    self._schedule(job, 0)
                    controller = self._controllers[job]
                    stops = controller.record.state.ended or controller.record.state.state == "stopping"
                    if job in self._busy and not stops and _pending_end(controller):
                        controller.workers.interrupt()
                    self._seen[job] = latest  # once it has its turn
                    continue
            self._seen[job] = latest
            try:
                self._adopt(job, record)
                self._unreadable.pop(job, None)
            except Exception as error:  # noqa: BLE001  (a job that was not adopted is never driven)
                self._cannot_read(job, error)
        return bool(self._controllers) or self._scan_again or self._scan_at < math.inf

    def _cannot_read(self, job: str, error: Exception) -> None:
        """Log an error once. What is wrong with the job's own files stays; any other error may end at any moment."""
        if self._unreadable.get(job) != str(error):
            self._unreadable[job] = str(error)
            _log.error("job %s: cannot be read: %s", job, error)
        if not isinstance(error, TpuxError) or isinstance(error, UnusableLocksError):
            self._seen.pop(job, None)
            self._scan_at = self._clock.monotonic() + UNREADABLE_RETRY

    def _adopt(self, job: str, record: Record) -> None:
        """Take the job's lock and give it its first turn, unless it is done."""
        pending = requests.pending(record)
        leftover = (record.config_directory / "secrets.json").exists()  # a supervisor died before it deleted them
        if (state := record.refresh()).done and not pending and not leftover:
            if open_jobs.is_open(state):  # that of an older tpux is missing
                open_jobs.mark(open_jobs.mark_of(str(record.directory)))
            plugins = plugins_of(record, self._plugins)
            opener = JobOpener(self._store, record, plugins)
            self._listeners.follow(record, partial(opener.open, "look"), plugins, done=True)
            return
        ends = any(request.action in {"stop", "delete"} for request in pending)
        if descriptors.is_short(urgent=True) if ends else descriptors.is_half_used():
            self._seen.pop(job)
            self._waiting[job] = descriptors.waiting()  # the end of another job starts a scan
            self._scan_at = self._clock.monotonic() + UNREADABLE_RETRY
            return
        self._waiting.pop(job, None)
        if not record.acquire():
            self._seen.pop(job)  # the command that creates it still holds it
            self._scan_again = True
            return
        abandoned = self._handover.abandoned.pop(job, {}) if self._handover is not None else {}
        controller = JobController(
            self._store, record, self._plugins, self._clock, self._listeners, abandoned=abandoned
        )
        controller.wake = self._look_again
        controller.allocator.on_answer = partial(self._look_at, job)
        controller.reopened = lambda: self._listeners.follow(record, controller.open, controller.plugins)
        controller.reopened()
        with self._guard:
            self._controllers[job] = controller
            self._schedule(job, 0)
        _log.info("job %s: adopted, %s", job, record.state.state)

    def _look_again(self) -> None:
        """Look for new requests at once: one job has written a request to another."""
        self._scan_again = True
        self._wake.set()

    def _look_at(self, job: str) -> None:
        """Give a job its turn now: an answer has come."""
        with self._guard:
            if job in self._controllers:
                self._schedule(job, 0)

    def _schedule(self, job: str, delay: float) -> None:
        """Queue the job's next turn, with the guard held. A job in its turn gets another one right after it."""
        if job in self._busy:
            self._again.add(job)
            return
        due = self._clock.monotonic() + min(delay, LONGEST_DELAY)
        if delay > 4 * SLACK:
            due = math.ceil(due / SLACK) * SLACK
        if due < self._asleep_until:
            self._wake.set()
        if delay == 0 or job not in self._due or due < self._due[job]:
            self._due[job] = due
            heapq.heappush(self._queue, (due, job))

    def _dispatch(self) -> float:
        """Start the turns that are due, with the guard held. Returns the seconds until the next one."""
        now, lively, delay = self._clock.monotonic(), 0, POLL_EVERY
        while self._queue:
            due, job = self._queue[0]
            if self._due.get(job) == due:
                if due > now:
                    delay = due - now
                    break
                self._busy.add(job)  # it can begin to end only when the guard is free
                try:
                    self._pool.submit(job)
                except BaseException:
                    self._busy.discard(job)
                    raise
                del self._due[job]
                lively += not self._controllers[job].is_quiet
            heapq.heappop(self._queue)  # or the job was scheduled again since
        self._pool.wake(lively)
        return delay

    def _turn(self, job: str) -> None:
        """Run one step of a job in a thread of the pool; the job stays scheduled even if the step raises."""
        controller = self._controllers[job]
        delay: float | None = ERROR_BACKOFF.cap
        try:
            delay = controller.advance()
            if controller.allocator.call is None:  # else it may still fail, as the last one did
                controller.errors.succeeded()
        except StepInterruptedError:
            delay = 0.0
        except BaseException as error:  # noqa: BLE001  (guards the supervisor against one job's or plugin's bug)
            delay = handle_error(controller, error)
        finally:
            with self._guard:
                try:
                    self._finish_turn(job, controller, delay)
                except BaseException:  # without memory: the next scan gives it another turn
                    self._seen.pop(job, None)
                    self._scan_again = True
                    raise

    def _finish_turn(self, job: str, controller: JobController, delay: float | None) -> None:
        """Queue the job's next turn, or drop the job if `delay` is None; the caller holds the guard."""
        self._busy.discard(job)
        if delay is None:
            del self._controllers[job]
            self._seen.pop(job, None)  # there may be a new request
            self._scan_again = True
            self._wake.set()
            controller.record.lock.release()
            _log.info("job %s: done", job)
        else:
            self._schedule(job, 0 if job in self._again else delay)
        self._again.discard(job)


def _pending_end(controller: JobController) -> str:
    """Return job and number of the last pending request to stop or delete a job; "" if there is none."""
    ends = [request.number for request in requests.pending(controller.record) if request.action in {"stop", "delete"}]
    return f"{controller.record.id}:{ends[-1]}" if ends else ""


def _is_ending(controller: JobController) -> bool:
    """Return whether a job is stopping, or releases its machines, or would if its allocator returned from a call."""
    state = controller.record.state
    asked = state.last_request.get("action") in {"stop", "delete"}
    return state.state == "stopping" or (asked and state.ended and (state.releasing or controller.allocator.holds_up))


def _mtime(path: str) -> int:
    """Return when the file was last changed, in ns; 0 if it does not exist."""
    try:
        return os.stat(path).st_mtime_ns  # noqa: PTH116  (called often)
    except FileNotFoundError:
        return 0
