"""The output of the command: poll it on a worker, and fetch it into its log without gaps and repeats.

`> /dev/stdout` and `tee /dev/stderr` open the file again to which the output goes, and truncate it: what was fetched
until then is not in it any more.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from tpux.backoff import Backoff
from tpux.errors import TpuxError
from tpux.model.host import OpenHost
from tpux.model.machines import Worker
from tpux.model.steps import sh
from tpux.remote import process
from tpux.remote.calls import WorkerCalls
from tpux.remote.fanout import fanout
from tpux.remote.followed_process import FollowedProcess, LocalRun
from tpux.remote.process import RemoteProcess, Status
from tpux.remote.workers import Workers
from tpux.store import files, output
from tpux.store.recent_fetches import RecentFetches

PROBE_EVERY = 60.0
"""Seconds without output after which it is checked that the process is still supervised; a poll cannot tell."""
PROBE_FOUND_WITHIN = 10.0
"""Seconds within which processes found running are probed: 100 probes at once would delay each other's output."""
MAX_FETCH = 64 * 1024 * 1024
"""Bytes of one worker's output that are fetched at a time, so that other jobs get their turn."""
POLL = "a poll of its program"
"""What has not returned, of a worker whose output is fetched."""
FOLLOW_AFTER = 8
"""Silent polls in a row after which a script on the worker follows the program: until then more output is likely."""
FOLLOW_BACKOFF = Backoff(60.0, 3600.0)
"""Before such a script is started again that has ended, or could not be started."""
RETRY_BACKOFF = Backoff(0.5, 15.0)
"""Before a worker that is unreachable is polled again."""
SHORT = 4096
"""Bytes of output up to which its beginning is read again to compare: a new line may be as long as the one before."""
COMPARED = 512
"""Bytes of the beginning that are compared: later ones can be written twice, as `tee /dev/stderr` does."""
LAST = 64
"""Bytes before the offset that are read again of longer output: others mean that it was truncated."""
LONGEST_UNCOMPARED = 16
"""Of so many polls in a row one reads again what is known: to send that costs half as much as the rest of a poll."""

TRUNCATED = (
    "the program truncates its output, as `> /dev/stdout` and `tee /dev/stderr` do: parts of it may be missing;"
    " `>&2` and `tee -a /dev/stderr` do not"
)


@dataclass(frozen=True)
class Program:
    """The command on one worker.

    Attributes:
        worker: the worker.
        run: its run there.
        log: what was fetched of its output.
    """

    worker: Worker
    run: RemoteProcess
    log: Path


@dataclass(frozen=True)
class Known:
    """What is known of an attempt, as it is when output arrives.

    Attributes:
        confirmed: the command has started on all workers, so it is never started again.
        ends: how many ends are known, that of the attempt included.
        last_end: when the command last ended on a worker, or tpux began to end it; 0 before. What is printed after that
            proves less, so it is kept apart from what was printed before.
    """

    confirmed: bool
    ends: int = 0
    last_end: float = 0.0


@dataclass
class PollState:
    """Polling state of one worker.

    Attributes:
        probe_at: when its process is probed next, by the monotonic clock, as all times here.
        retry_at: when it is polled again while it is unreachable.
        retries: how many polls in a row have failed.
        silent: how many polls in a row have found no new output.
        output_at: when the last new output was found.
        local: the run, if the worker is this machine.
        followed: the run, if a script on the worker follows it.
        follow_at: when such a script may be started next.
        follow_tries: how many times in a row none could be started.
        fetches: when its last output was fetched.
        ends: how many ends were known when that was last recorded.
    """

    probe_at: float
    retry_at: float = 0.0
    retries: int = 0
    silent: int = 0
    output_at: float = math.inf
    local: LocalRun | None = None
    followed: FollowedProcess | None = None
    follow_at: float = 0.0
    follow_tries: int = 0
    fetches: RecentFetches = field(default_factory=RecentFetches)
    ends: int = -1


class Poller:
    """Polls the programs of one attempt.

    Args:
        workers: the workers of the job.
        poll_every: seconds between two polls of a silent program.
        silence_limit: seconds of silence that end a program; from shortly before on each poll reads again what is
            known, to notice a truncated output.
        warn: appends a line to the job's log.

    Attributes:
        polls: the polling state of each worker on which the program was started or found.
    """

    def __init__(self, workers: Workers, poll_every: float, silence_limit: float, warn: Callable[[str], None]) -> None:
        self.polls: dict[int, PollState] = {}
        self._workers = workers
        self._poll_every = poll_every
        self._compare_after = silence_limit - LONGEST_UNCOMPARED * poll_every
        self._warn = warn

    def assume_started(self, programs: Iterable[int]) -> None:
        """Poll these workers without probing whether the program runs, and without starting it."""
        probe_at = self._workers.clock.monotonic() + PROBE_EVERY
        self.polls |= {index: PollState(probe_at) for index in programs}

    def compares(self, silence: float) -> bool:
        """Return whether each poll reads again what is known, after so many seconds without output."""
        return silence > self._compare_after

    def poll(
        self,
        program: Program,
        current: Callable[[], Known],
        start: Callable[[OpenHost], Status] | None = None,
        max_fetch: int = MAX_FETCH,
    ) -> Status:
        """Poll the program of one worker, and append its output to its log, whose length is the next offset.

        Args:
            program: the program.
            current: returns what is known of the attempt, also in a call that outlasts its step.
            start: starts the program on a worker that is not in `polls`, or attaches to it; None if it is known to
                have been started.
            max_fetch: bytes after which no more is fetched in this call.

        Raises:
            HostUnreachableError: the worker did not answer.
            TpuxError: the command cannot be started there.
        """
        index, run, log = program.worker.index, program.run, program.log
        host, now = self._workers.host(program.worker), self._workers.clock.monotonic()
        if (poll := self.polls.get(index)) and poll.followed:
            poll.followed.begin_poll(now)
        if poll is None:
            log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            status = start(host) if start else fetch_or_probe(host, run, log)
            within = random.uniform(0, PROBE_FOUND_WITHIN) if current().confirmed else PROBE_EVERY  # noqa: S311
            home: Path | None = getattr(host, "local_home", None)
            local = LocalRun.at(home, run, log) if home and not output.was_truncated(log) else None
            poll = self.polls[index] = PollState(now + within, local=local)
        elif poll.retries or now > poll.probe_at or (poll.followed and poll.followed.ended):
            # A script that has ended says only that something did: the run, its runner, or the connection.
            status = probe(host, run, log)
            poll.probe_at, poll.retry_at, poll.retries = now + PROBE_EVERY, 0.0, 0
        else:
            compared = poll.followed or self.compares(now - poll.output_at)
            status = fetch_or_probe(host, run, log, 0 if compared else poll.silent)
        poll.silent = 0 if status.output else poll.silent + 1
        poll.output_at = now if status.output else min(poll.output_at, now)
        known = current()
        after = known.last_end
        if known.ends != poll.ends or status.phase != "running":
            poll.fetches.record(log)
            poll.ends, after = known.ends, math.inf
        if status.output:
            poll.probe_at = max(poll.probe_at, now + PROBE_EVERY)
            poll.fetches.add(log, self._workers.clock.now())
        status = _append(self._workers, program, host, status, max_fetch, after, self._warn)
        if status.truncated:
            poll.local = None  # which compares the sizes of the output and its log
        self._follow(poll, host, run, status)
        return status

    def _follow(self, poll: PollState, host: OpenHost, run: RemoteProcess, status: Status) -> None:
        """Have a silent program followed by a script on its worker, which ends with the program, or is overdue."""
        now = self._workers.clock.monotonic()
        if poll.followed and (status.phase != "running" or poll.followed.ended or poll.followed.is_overdue(now)):
            poll.followed.close()
            poll.followed = None
        is_due = poll.silent >= FOLLOW_AFTER and now >= poll.follow_at
        if status.phase == "running" and is_due and not (poll.local or poll.followed):
            # First: if the start loses the connection, the next poll is not to try it again.
            poll.follow_at = now + FOLLOW_BACKOFF.delay(poll.follow_tries)
            poll.follow_tries += 1
            poll.followed = FollowedProcess.start(host, run, self._poll_every / 2, now)
            poll.follow_tries = 0 if poll.followed else poll.follow_tries


def is_quiet(poll: PollState, now: float) -> bool:
    """Return whether the command runs on a worker and has written nothing new; False if that takes waiting to know."""
    if poll.retries:
        return False
    if followed := poll.followed:  # a poll in another thread may set it to None
        return followed.is_silent(now) and poll.silent >= FOLLOW_AFTER and now <= poll.probe_at
    if poll.local is None or not poll.local.is_silent():
        return False
    if now > poll.probe_at:
        if not poll.local.has_runner():
            return False
        poll.probe_at = now + PROBE_EVERY
    return True


def drain(
    workers: Workers,
    programs: Mapping[int, Program],
    last_end: float,
    warn: Callable[[str], None],
    max_fetch: int = MAX_FETCH,
) -> dict[int, Status | TpuxError]:
    """Fetch output that was written while the programs were ended; children may outlive the shell.

    Args:
        workers: the workers of the job.
        programs: from which it is fetched.
        last_end: see `Known`.
        warn: appends a line to the job's log.
        max_fetch: bytes after which no more is fetched from a worker in this call.

    Returns:
        The last answer of each worker, or why nothing could be fetched.
    """

    def one(_: int, program: Program) -> Status:
        host = workers.host(program.worker)
        status = fetch(host, program.run, program.log)
        return _append(workers, program, host, status, max_fetch, last_end, warn)

    calls: WorkerCalls[Status] = workers.calls(POLL)
    return calls.make_all(programs, one)


def read_notices(workers: Workers, programs: Mapping[int, Program]) -> dict[int, str | TpuxError]:
    """Return what each worker has recorded of the notice of a preemption, also where the command has ended."""
    return fanout(programs, lambda _, one: process.read_notice(workers.host(one.worker), one.run))


def count_missing(workers: Workers, programs: Mapping[int, Program]) -> dict[int, int | TpuxError]:
    """Return how many bytes of output were not fetched from each worker, or why that is unknown."""

    def count(index: int, program: Program) -> int:
        size = workers.host(program.worker).run(sh("wc -c <{path}", path=program.run.output).script)
        if not size.ok or not size.text.isdecimal():
            raise TpuxError(f"the size of the output cannot be read: {size.text}", where=f"worker {index}")
        return int(size.text) - output.next_offset(program.log)

    calls: WorkerCalls[int] = workers.calls("the count of its output")
    return calls.make_all(programs, count)


def fetch_or_probe(host: OpenHost, run: RemoteProcess, log: Path, silent: int = 0) -> Status:
    """Fetch from a run that was started; if its directory is missing, it is lost. See `fetch`."""
    status = fetch(host, run, log, silent=silent)
    return status if status.phase != "absent" else probe(host, run, log)


def probe(host: OpenHost, run: RemoteProcess, log: Path) -> Status:
    """Return the state of a run that was started; one that no longer exists is lost."""
    status = fetch(host, run, log, probe=True)
    if status.phase == "absent":
        return Status("lost", reason="the process is no longer on the worker")
    return status


def fetch(host: OpenHost, run: RemoteProcess, log: Path, *, probe: bool = False, silent: int = 0) -> Status:
    """Fetch from a run the output that its log does not have yet; see `process.poll`.

    If the program has truncated its output, what it has written since then is new, and the next offset changes. What
    it writes after a long silence is then found only after some polls more, since most of them read nothing again, or
    never if it is truncated before.

    Args:
        host: the worker.
        run: the run.
        log: its log.
        probe: check that its process lives, with `process.probe`.
        silent: how many polls in a row have found nothing.

    Raises:
        HostUnreachableError: the worker did not answer.
        TpuxError: the probe failed.
    """
    ask = process.probe if probe else process.poll
    offset = output.next_offset(log)
    if not probe and not _is_compared(silent):
        status = process.poll(host, run, offset)
        if status.phase == "absent" or (status.phase == "running" and not status.output):
            return status
    known = offset if offset <= SHORT else LAST
    begin = offset - known
    status = ask(host, run, begin)
    if status.phase == "absent" or not offset:
        return status
    read, new = status.output[:known], replace(status, output=status.output[known:])
    if len(read) == known:  # else the file is shorter
        if output.ends_with(log, read) if begin else output.has(log, read[:COMPARED]):
            return new
        if begin and output.is_overwritten(log):
            return new
    if begin:
        status = ask(host, run, 0)
        beginning = status.output[:COMPARED]
        if len(read) == known and len(beginning) == COMPARED and output.has(log, beginning):
            output.mark_overwritten(log)
            return new
        # Not truncated: a crash of the worker's machine has lost the end of the file.
        if len(status.output) > SHORT and output.has(log, status.output):
            return replace(status, output=b"", more=False)
    first = not output.was_truncated(log)
    output.begin_anew(log)
    return replace(status, truncated=first)


def _append(
    workers: Workers,
    program: Program,
    host: OpenHost,
    status: Status,
    max_fetch: int,
    after: float,
    warn: Callable[[str], None],
) -> Status:
    """Append the output of a poll to a run's log, and what there is beyond it.

    Args:
        workers: the workers of the job.
        program: the program.
        host: the worker.
        status: the answer of the poll.
        max_fetch: bytes after which no more is fetched in this call.
        after: see `record_time`.
        warn: appends a line to the job's log.

    Returns:
        The last poll's answer.
    """
    fetched, truncated, log = 0, False, program.log
    if status.output:
        output.record_time(log, workers.clock.now(), after)
    while True:
        if status.output or not log.exists():
            files.append_output(log, status.output)
        fetched += len(status.output)
        if status.truncated:
            truncated = True
            warn(f"worker {host.worker.index}: {TRUNCATED}")
        if not status.more:
            return replace(status, truncated=truncated) if truncated else status
        if fetched >= max_fetch:
            return replace(status, phase="running", code=None, more=True, truncated=truncated)
        status = fetch(host, program.run, log)


def _is_compared(silent: int) -> bool:
    """Return whether known output is read again: for a program that was silent for n polls at most n polls later."""
    return silent & (silent - 1) == 0 or silent % LONGEST_UNCOMPARED == 0
