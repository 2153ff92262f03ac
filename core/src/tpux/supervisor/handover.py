"""Replace the supervisor's process by a new one that runs the code on the disk: the pid stays, and so does its lock.

The installation has changed (`installation`), or the main loop does not move (`heartbeat`), or a stop or delete waits
for a turn that a plugin blocks, which nothing but the end of the process ends. The latter is done once per request and,
while the job is stopping, once per hook that blocks it. The new process is told the blocking calls
(`lifecycle/errors.py`), and leaves them out.

1. Wait until the installation has not changed for a while (`installation.QUIET_FOR`).
2. Check it in a new process (`check`): import core, and open the live jobs with their plugins; for a stop or delete
   only core. If that fails, the old code continues; the log and `tpux supervisor status` say why.
3. Begin no more calls of allocators and, when those that have begun have ended, no more turns. Wait `DRAIN_TIMEOUT` in
   all; the rest is cut off, as by a crash.
4. Check that the installation is still the one that was checked, and call `os.execv`. The new process inherits the
   descriptor of the lock, so the lock is not free at any moment; the locks of the jobs are released and taken again.

All of this relies on one rule: a job can be continued from any moment.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from tpux.backoff import Backoff
from tpux.clock import Clock
from tpux.errors import plain_reason
from tpux.store.locks import Lock
from tpux.supervisor.check import LONGEST, RunningCheck
from tpux.supervisor.installation import Stamps, UpgradeCheck

_log = logging.getLogger(__name__)
Abandoned = Mapping[str, Mapping[str, str]]
"""By job, what `JobErrors.abandoned` has."""

DRAIN_TIMEOUT = 60.0
"""Seconds that turns have to end before the process is replaced. Those that are blocked already are not waited for."""

MAX_UNSETTLED = 3
"""Checks in a row during which the installation may change, before that is reported. Then a plugin, such as one that
writes into its own package when it is imported, is the likeliest cause."""
UNSETTLED_BACKOFF = Backoff(first=60.0, cap=3600.0)
"""Before the next check after that."""


class Handover:
    """Replaces the process when its installation has changed, or when only that ends a blocked turn.

    Args:
        clock: the current time.
        done_for: the user requests for which the process was replaced already, with the hook that blocked where one
            did while the job was stopping. Once is enough for each.
        abandoned: the calls of plugins that the processes before this one were replaced to end.

    Attributes:
        abandoned: as above; a job's are removed when it is adopted.
        problem: why the changed installation is not used; "" if it is not changed, or is about to be used.
    """

    def __init__(self, clock: Clock, done_for: Iterable[str] = (), abandoned: Abandoned = MappingProxyType({})) -> None:
        self.abandoned = dict(abandoned)
        self._clock = clock
        self._watch = UpgradeCheck(clock)
        self._done_for = frozenset(done_for) - {""}
        self._requests: frozenset[str] = frozenset()
        self._check: RunningCheck | None = None
        self._checked: tuple[Stamps, frozenset[str]] | None = None
        self._drain_until: float | None = None
        self._unsettled = 0
        self._check_at = 0.0
        self.problem = ""

    @property
    def draining(self) -> bool:
        """True if the process is replaced as soon as what has begun has ended."""
        return self._drain_until is not None

    @property
    def drained(self) -> bool:
        """True if calls and turns have had their time to end."""
        return self._drain_until is not None and self._clock.monotonic() >= self._drain_until

    def update(self, jobs: list[str], requests: Iterable[str]) -> None:
        """Look at the installation, and begin or follow the check of a new one.

        Args:
            jobs: the jobs that this process has opened, so that the new one must be able to; they do not prevent what
                a request needs.
            requests: the requests to stop or delete a job whose turn is blocked.
        """
        self._watch.look()
        if self.draining:
            return
        if self._check is not None:
            self._follow_check(self._check, frozenset(requests))
            return
        self._requests = frozenset(requests) - self._done_for
        wanted = (self._watch.stamps, self._requests)
        if not (self._watch.changed or self._requests) or not self._watch.quiet or wanted == self._checked:
            return
        if self._clock.monotonic() < self._check_at and not self._requests:
            return
        _log.info("checking the installation, which %s", "has changed" if self._watch.changed else "is started again")
        self._checked = wanted
        try:
            # A stop or delete must not depend on other jobs: one that cannot be opened waits, and is not failed.
            self._check = RunningCheck([] if self._requests else jobs)
        except OSError as error:
            self._refuse(f"its check cannot be started: {plain_reason(error)}")

    def _follow_check(self, check: RunningCheck, requests: frozenset[str]) -> None:
        if (problem := check.problem()) is None:
            return
        self._check = None
        if problem:
            self._refuse(problem)
        elif self._checked and self._checked[1] and not (self._watch.changed or self._checked[1] & requests):
            _log.info("nothing is blocked any more")
            self._checked = None  # what seemed to be blocked was stopped with this process (SIGSTOP), and has ended
        elif self._is_as_checked():
            self._unsettled, self._check_at = 0, 0.0
            self._drain_until = self._clock.monotonic() + DRAIN_TIMEOUT
            self.problem = ""
            _log.info("waiting for calls of allocators and for turns to end")

    def _is_as_checked(self) -> bool:
        """Return whether the installation is still the one that was checked.

        If it is not, it is checked again when nothing has changed for a while.
        """
        self._watch.look(now=True)
        before, now = self._checked[0] if self._checked else {}, self._watch.stamps
        if before == now:
            return True
        self._unsettled += 1
        if self._unsettled >= MAX_UNSETTLED:
            self._check_at = self._clock.monotonic() + UNSETTLED_BACKOFF.delay(self._unsettled - MAX_UNSETTLED)
            changed = ", ".join(sorted(root for root in {*before, *now} if before.get(root) != now.get(root)))
            self._refuse(
                f"it has changed during each of the last {self._unsettled} checks, the last time in {changed}:"
                " a plugin must not write into an installed package when it is imported"
            )
        return False

    def _refuse(self, problem: str) -> None:
        self.problem = problem
        _log.error("the installation on the disk cannot be used, and jobs continue with the old one: %s", problem)

    def replace_process(self, lock: Lock, cut_off: list[str], abandoned: Abandoned) -> None:
        """Replace the process. Returns only if that was not possible; then turns may begin again.

        Args:
            lock: the supervisor's lock, which the new process takes over.
            cut_off: the jobs whose turn is ended so.
            abandoned: the calls of plugins that the new process leaves out.
        """
        self._drain_until = None
        if not self._is_as_checked():
            return
        for job in cut_off:
            _log.warning("job %s: its turn did not return, and is ended with this process", job)
        _log.info("replacing process %d", os.getpid())
        for handler in logging.getLogger().handlers:
            handler.flush()
        if problem := self._execute(lock, self._done_for | self._requests, abandoned):
            self._refuse(problem)

    def check_now(self, jobs: list[str]) -> str:
        """Return why a stuck process cannot be replaced by the installation on the disk; "" if it can.

        Waits for a check, and is called while nobody calls `update`.

        Args:
            jobs: the jobs that this process has opened; they are checked if the installation has changed.
        """
        self._watch.look(now=True)
        before = self._watch.stamps
        if not self._watch.quiet:
            return "the installation has just changed"
        try:
            check = RunningCheck(jobs if self._watch.changed else [])
        except OSError as error:
            return f"its check cannot be started: {plain_reason(error)}"
        for _ in range(2 * LONGEST):
            if (problem := check.problem()) is not None:
                self._watch.look(now=True)
                return problem or ("" if self._watch.stamps == before else "the installation has just changed")
            time.sleep(0.5)
        return "the check of the installation has not ended"

    def revive(self, lock: Lock, abandoned: Abandoned) -> str:
        """Replace a stuck process, from another thread, after `check_now`. Returns why that was not possible."""
        return self._execute(lock, self._done_for, abandoned)

    @staticmethod
    def _execute(lock: Lock, done_for: frozenset[str], abandoned: Abandoned) -> str:
        try:
            descriptor = lock.pass_on()
        except ValueError:
            return "it is ending"
        arguments = ["-m", "tpux.supervisor", "--lock", str(descriptor), "--done-for", ",".join(sorted(done_for))]
        if abandoned:  # another version, to which an upgrade leads, need not know the option
            arguments += ["--abandoned", json.dumps(abandoned)]
        try:
            os.execv(sys.executable, [sys.executable, *arguments])  # noqa: S606  (no shell is meant)
        except OSError as error:
            os.set_inheritable(descriptor, False)
            return f"{sys.executable} cannot be started: {plain_reason(error)}"
