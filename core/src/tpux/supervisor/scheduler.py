"""Whose turn it is: a queue of jobs by when they want to be looked at, and a small pool of threads."""

from __future__ import annotations

import heapq
import json
import logging
import math
import os
import resource
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from pathlib import Path

from tpux.clock import Clock
from tpux.errors import TpuxError
from tpux.lifecycle import JobContext, advance
from tpux.lifecycle.release import release_at
from tpux.plugin.failures import Failure
from tpux.plugin.manager import Plugins
from tpux.store import Store, requests
from tpux.store.locks import Lock
from tpux.store.record import Record
from tpux.supervisor.client import Files

_log = logging.getLogger(__name__)

THREADS = 16
LOOK_EVERY = 0.1
"""Seconds between two looks at the poke."""
SLACK = 0.1
"""Turns that are further away than a few of these fall on one beat, so that many jobs cost few wake-ups."""
TAKE_WITHIN = 2.0
"""Seconds that a new supervisor tries to take the lock: a command may be testing it just now."""
PROBLEMS = 8
"""Turns in a row that may raise before the job fails."""
KEEP_IN_TROUBLE = 3600.0
"""Seconds that the machines of a job are kept whose config cannot be read any more."""


class Supervisor:
    """Drives the jobs of one user.

    Args:
        store: where they are.
        clock: what time it is.
    """

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._plugins = Plugins()
        self._files = Files(store.supervisor)
        self._lock = Lock(self._files.lock)
        self._wake = threading.Event()
        self._guard = threading.Lock()
        self._contexts: dict[str, JobContext] = {}
        self._queue: list[tuple[float, str]] = []
        self._next: dict[str, float] = {}
        self._busy: set[str] = set()
        self._again: set[str] = set()
        self._seen: dict[str, int] = {}
        self._look_again = False
        self._asleep_until = 0.0

    def run(self) -> int:
        """Drive the jobs until none runs or owes a release.

        It lets go of its lock, looks once more, and takes it back if a job has come: a command that found
        the lock held has written its wish before.
        """
        _raise_file_limit()
        while self._take():
            _log.info("begins, process %d", os.getpid())
            self._store.purge()
            with ThreadPoolExecutor(THREADS, thread_name_prefix="turn") as pool:
                self._drive(pool)
            dismissed = self._dismissed()
            self._lock.release()
            if dismissed or not self._look():
                break
        for context in self._contexts.values():
            context.record.lock.release()
        _log.info("ends")
        return 0

    def _take(self) -> bool:
        deadline = time.monotonic() + TAKE_WITHIN
        while not self._lock.acquire():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        started = datetime.now(timezone.utc).isoformat(timespec="seconds")
        try:
            self._lock.annotate(
                json.dumps({"pid": os.getpid(), "host": os.uname().nodename, "started": started}) + "\n"
            )
        except OSError as error:  # a full disk: people miss the word, nothing else does
            _log.warning("could not leave word of who holds the lock: %s", error)
        return True

    def _drive(self, pool: ThreadPoolExecutor) -> None:
        poked = self._poked()
        self._look()
        while not self._dismissed():
            if (now_poked := self._poked()) != poked or self._look_again:
                poked = now_poked
                self._look()
            with self._guard:
                if not self._contexts and not self._look_again:
                    return
                wait = self._hand_out(pool)
                self._asleep_until = self._clock.now() + min(wait, LOOK_EVERY)
            self._wake.wait(min(wait, LOOK_EVERY))
            self._wake.clear()

    def _dismissed(self) -> bool:
        """Whether it is to end with jobs at hand: the user wants that, or has removed the store under it."""
        return self._files.stop.exists() or not self._lock.still_linked

    def _poked(self) -> int:
        try:
            return self._files.poke.stat().st_mtime_ns
        except FileNotFoundError:
            return 0

    def _look(self) -> bool:
        """Take up each job that is not idle, and give a turn to those that have a new wish; whether there is any."""
        self._look_again = False
        for job in self._store.ids():
            record = self._store.record(job)
            wish = _mtime(record.directory / requests.FILE)
            if self._seen.get(job) == wish:
                continue
            self._seen[job] = wish
            with self._guard:
                if job in self._contexts:
                    self._schedule(job, 0)
                    continue
            try:
                self._take_up(job, record)
            except TpuxError as error:
                _log.error("cannot take up job %s: %s", job, error)
            except OSError as error:
                _log.error("cannot take up job %s yet: %s", job, error)
                self._seen.pop(job)
                self._look_again = True
        return bool(self._contexts) or self._look_again

    def _take_up(self, job: str, record: Record) -> None:
        wish = requests.read(record.directory)
        news = wish is not None and wish.id != record.refresh().last_request_id
        if record.refresh().done and not news:
            return
        if not record.acquire():
            self._seen.pop(job)  # its creator has it, for a moment
            self._look_again = True
            return
        with self._guard:
            self._contexts[job] = JobContext(self._store, record, self._plugins, self._clock)
            self._schedule(job, 0)
        _log.info("job %s: taken up, %s", job, record.state.state)

    def _schedule(self, job: str, delay: float) -> None:
        """Give the job its next turn; with the guard held."""
        if job in self._busy:
            self._again.add(job)
            return
        due = self._clock.now() + delay
        if delay > 4 * SLACK:
            due = math.ceil(due / SLACK) * SLACK
        if due < self._asleep_until:
            self._wake.set()
        if delay == 0 or job not in self._next or due < self._next[job]:
            self._next[job] = due
            heapq.heappush(self._queue, (due, job))

    def _hand_out(self, pool: ThreadPoolExecutor) -> float:
        """Give each job whose turn it is to a thread, with the guard held; seconds until the next turn."""
        while self._queue:
            due, job = self._queue[0]
            if self._next.get(job) != due:
                heapq.heappop(self._queue)  # another entry has taken its place
            elif (wait := due - self._clock.now()) > 0:
                return wait
            else:
                heapq.heappop(self._queue)
                del self._next[job]
                self._busy.add(job)
                pool.submit(self._turn, job)
        return LOOK_EVERY

    def _turn(self, job: str) -> None:
        context = self._contexts[job]
        try:
            delay = advance(context)
            context.problems = 0
        except (TpuxError, OSError) as error:
            delay = _trouble(context, error)
        except Exception as error:  # noqa: BLE001  (guards the supervisor from one job's bug; logged in full)
            delay = _trouble(context, error)
        with self._guard:
            self._busy.discard(job)
            if delay is None:
                del self._contexts[job]
                self._seen.pop(job, None)  # a wish may have come in the meantime
                self._look_again = True
                self._wake.set()
                context.record.lock.release()
                _log.info("job %s: let go", job)
            else:
                self._schedule(job, 0 if job in self._again else delay)
            self._again.discard(job)


def _trouble(context: JobContext, error: Exception) -> float:
    """A turn that raised is tried again, with growing pauses; in the end the job fails, and says why."""
    context.problems += 1
    pause = min(2.0**context.problems / 2, 5.0 if isinstance(error, OSError) else 60.0)
    _log.error("job %s, problem %d: %s", context.record.directory.name, context.problems, error, exc_info=error)
    if (
        context.problems < PROBLEMS
        or isinstance(error, OSError)
        or context.state.ended
        or context.state.state == "stopping"
    ):
        return pause  # what the disk refuses now, and a release that is owed, is tried for ever
    failure = Failure("unknown", evidence=f"tpux could not go on: {error}", hint="see the supervisor's log")
    try:
        context.failed(failure)
        context.move("failed", why=failure.evidence, release_at=_release_at(context))
    except (TpuxError, OSError):
        _log.exception("job %s: could not write down its failure", context.record.directory.name)
        return pause
    return 0.0


def _release_at(context: JobContext) -> float | None:
    try:
        return release_at(context, "failed")
    except TpuxError:  # the config cannot be read: what it says of releases is not known, and machines cost money
        return context.clock.now() + KEEP_IN_TROUBLE


def _mtime(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def _raise_file_limit() -> None:
    """A lock a job and a connection a worker: allow as many open files as the system does."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
