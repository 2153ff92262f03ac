"""Start the command on a worker, or attach to it; poll its output, its end, and notices of a preemption."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from tpux.backoff import Backoff
from tpux.errors import TpuxError
from tpux.lifecycle import fetch
from tpux.lifecycle.attempt import attempt_script, command, command_process, workers
from tpux.lifecycle.context import JobContext
from tpux.lifecycle.endings import record_end, record_notice
from tpux.lifecycle.storage import is_url
from tpux.model.host import Host
from tpux.model.machines import Worker
from tpux.model.steps import sh
from tpux.remote import job_runs, process
from tpux.remote.fanout import fanout
from tpux.remote.hung import describe_hung, hung_processes
from tpux.remote.process import NoticeWatch, RemoteProcess, Status
from tpux.remote.watched_run import LocalRun, WatchedRun
from tpux.remote.worker_calls import WorkerCalls
from tpux.store import output
from tpux.store.recent_fetches import RecentFetches

PROBE_EVERY = 60.0
"""Seconds without output after which it is checked that the process is still supervised; a poll cannot tell."""
PROBE_FOUND_WITHIN = 10.0
"""Seconds within which processes found running are probed: 100 probes at once would delay each other's output."""
MAX_FETCH = 64 * 1024 * 1024
"""Bytes of one worker's output that are fetched at a time, so that other jobs get their turn."""
KEEP_MARGIN = 15.0
"""Seconds for which a worker waits for a notice beyond `watch.verdict_grace`, which is observed time."""
POLL = "a poll of its program"
"""What has not returned, of a worker whose output is fetched."""
WATCH_AFTER = 8
"""Silent polls in a row after which a script on the worker watches the program: until then more output is likely."""
WATCH_BACKOFF = Backoff(60.0, 3600.0)
"""Before such a script is started again that has ended, or could not be started."""
RETRY_BACKOFF = Backoff(0.5, 15.0)
"""Before a worker that is unreachable is polled again."""


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
        watched: the run, if a script on the worker watches it.
        watch_at: when such a script may be started next.
        watch_tries: how many times in a row none could be started.
        fetches: when its last output was fetched.
        ends: how many ends were known when that was last recorded.
    """

    probe_at: float
    retry_at: float = 0.0
    retries: int = 0
    silent: int = 0
    output_at: float = math.inf
    local: LocalRun | None = None
    watched: WatchedRun | None = None
    watch_at: float = 0.0
    watch_tries: int = 0
    fetches: RecentFetches = field(default_factory=RecentFetches)
    ends: int = -1


def poll_worker(context: JobContext, polls: dict[int, PollState], worker: Worker, max_fetch: int = MAX_FETCH) -> Status:
    """Poll the command on one worker, and append its output to its log, whose length is the next offset.

    Args:
        context: the job.
        polls: polling state by worker; on one that is not in it the command is started, unless it is already.
        worker: which worker.
        max_fetch: bytes after which no more is fetched in this call.

    Raises:
        HostUnreachableError: the worker did not answer.
        TpuxError: the command cannot be started there.
    """
    host, run = context.connections.host(worker), command_process(context, worker.index)
    now = context.clock.monotonic()
    log = context.record.output_log(context.state.attempt, worker.index)
    if (poll := polls.get(worker.index)) and poll.watched:
        poll.watched.begin_poll(now)
    if poll is None:
        log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        status = _start_or_attach(context, host, run, log)
        within = random.uniform(0, PROBE_FOUND_WITHIN) if context.state.run.running else PROBE_EVERY  # noqa: S311
        home: Path | None = getattr(host, "local_home", None)
        local = LocalRun.at(home, run, log) if home and not output.was_truncated(log) else None
        poll = polls[worker.index] = PollState(now + within, local=local)
    elif poll.retries or now > poll.probe_at:
        status = _probe(host, run, log)
        poll.probe_at, poll.retry_at, poll.retries = now + PROBE_EVERY, 0.0, 0
    else:
        compared = poll.watched or _may_stall(context, now - poll.output_at)
        status = _poll(host, run, log, 0 if compared else poll.silent)
    poll.silent = 0 if status.output else poll.silent + 1
    poll.output_at = now if status.output else min(poll.output_at, now)
    after, ends = _last_event(context), len(context.state.endings) + bool(context.state.run.failure)
    if ends != poll.ends or status.phase != "running":
        poll.fetches.record(log)
        poll.ends, after = ends, math.inf
    if status.output:
        poll.probe_at = max(poll.probe_at, now + PROBE_EVERY)
        poll.fetches.add(log, context.clock.now())
    status = fetch.append_output(context, host, run, log, status, max_fetch, after)
    if status.truncated:
        poll.local = None  # which compares the sizes of the output and its log
    _watch(context, poll, host, run, status)
    return status


def _watch(context: JobContext, poll: PollState, host: Host, run: RemoteProcess, status: Status) -> None:
    """Have the program watched on its worker once it is silent; end that with the program, or when it tells nothing.

    Args:
        context: the job.
        poll: what is known of this worker's program.
        host: a connection to the worker.
        run: the program.
        status: its state, as just polled.
    """
    now, interval = context.clock.monotonic(), context.job.watch.poll_every / 2
    if poll.watched and (status.phase != "running" or poll.watched.ended or poll.watched.is_overdue(now)):
        poll.watched.close()
        poll.watched = None
    is_due = poll.silent >= WATCH_AFTER and now >= poll.watch_at
    if status.phase == "running" and is_due and not (poll.local or poll.watched):
        # First: if the start loses the connection, the next poll is not to try it again.
        poll.watch_at = now + WATCH_BACKOFF.delay(poll.watch_tries)
        poll.watch_tries += 1
        poll.watched = WatchedRun.start(host, run, interval, now)
        poll.watch_tries = 0 if poll.watched else poll.watch_tries


def _may_stall(context: JobContext, silence: float) -> bool:
    """Return whether a worker has been silent for almost as long as ends a program: then each poll compares."""
    job = context.job
    limits = (job.job.stalled_after, job.watch.straggler_grace if job.command.finished_by else None)
    limit = min((limit for limit in limits if limit is not None), default=math.inf)
    return silence > limit - fetch.LONGEST_UNCOMPARED * job.watch.poll_every


def is_quiet(poll: PollState, now: float) -> bool:
    """Return whether the command runs on a worker and has written nothing new; False if that takes waiting to know."""
    if poll.retries:
        return False
    if watched := poll.watched:  # a poll in another thread may set it to None
        return watched.is_silent(now) and poll.silent >= WATCH_AFTER and now <= poll.probe_at
    if poll.local is None or not poll.local.is_silent():
        return False
    if now > poll.probe_at:
        if not poll.local.has_runner():
            return False
        poll.probe_at = now + PROBE_EVERY
    return True


def drain_output(
    context: JobContext, *, without: Iterable[int] = (), max_fetch: int = MAX_FETCH
) -> tuple[list[int], dict[int, TpuxError]]:
    """Fetch output written while the processes were terminated; children may outlive the shell.

    It also records where the command has ended, if that is not known yet.

    Args:
        context: the job.
        without: workers that are left out.
        max_fetch: bytes after which no more is fetched from a worker in this call.

    Returns:
        The workers that have more, and the errors of those from which nothing could be fetched.
    """

    def drain(index: int, worker: Worker) -> Status:
        run = command_process(context, index)
        host, log = context.connections.host(worker), context.record.output_log(run.attempt, index)
        status = fetch.poll(host, run, log)
        return fetch.append_output(context, host, run, log, status, max_fetch, _last_event(context))

    calls: WorkerCalls[Status] = context.connections.calls(POLL)
    answers = calls.make_all(workers(context, without=without), drain)
    errors = {index: answer for index, answer in answers.items() if isinstance(answer, TpuxError)}
    statuses = {index: answer for index, answer in answers.items() if not isinstance(answer, TpuxError)}
    for index, status in statuses.items():
        if status.phase == "ended" and index not in context.state.endings:
            record_end(context, index, status)
    return [index for index, status in statuses.items() if status.more], errors


def read_notices(context: JobContext, retry_after: float) -> None:
    """Ask all workers for notices of a preemption, also those on which the command has ended.

    Args:
        context: the job.
        retry_after: seconds until they are asked again.
    """

    def read(index: int, worker: Worker) -> str:
        return process.read_notice(context.connections.host(worker), command_process(context, index))

    answers = fanout(workers(context), read)
    for index, answer in sorted(answers.items()):
        worker = context.allocation.workers[index]
        if isinstance(answer, TpuxError):
            context.connections.mark_unreachable(worker, answer, retry_after)
            continue
        context.connections.mark_reachable(worker)
        if answer:
            record_notice(context, index, answer)


def count_missing_output(context: JobContext, indices: Iterable[int]) -> dict[int, int | TpuxError]:
    """Return how many bytes of output were not fetched from each of these workers, or why that is unknown."""
    chosen = set(indices)

    def count(index: int, worker: Worker) -> int:
        run = command_process(context, index)
        size = context.connections.host(worker).run(sh("wc -c <{path}", path=run.output).script)
        if not size.ok or not size.text.isdecimal():
            raise TpuxError(f"the size of the output cannot be read: {size.text}", where=f"worker {index}")
        return int(size.text) - output.next_offset(context.record.output_log(run.attempt, index))

    every = workers(context)
    asked = {index: worker for index, worker in every.items() if index in chosen}
    calls: WorkerCalls[int] = context.connections.calls("the count of its output")
    return calls.make_all(asked, count)


def _last_event(context: JobContext) -> float:
    """Return when the command last ended on a worker, or tpux began to end it; 0 before.

    What is printed after that proves less, so it is told apart from what was printed before.
    """
    failure = context.state.run.failure
    ends = [ending.at for ending in context.state.endings.values()]
    return max(*ends, (failure.at or 0.0) if failure else 0.0, 0.0)


def _start_or_attach(context: JobContext, host: Host, run: RemoteProcess, log: Path) -> Status:
    if context.state.run.running:  # the start was confirmed, so it is never repeated
        return _poll(host, run, log)
    home = _prepare_worker(context, host)
    program = command(context, host.worker, home=home)
    try:
        notice, offset = _notice_watch(context), output.next_offset(log)
        return process.start(host, run, attempt_script(context), program, offset=offset, wait=0.1, notice=notice)
    except ValueError as error:
        where = f"worker {host.worker.index}"
        raise TpuxError(f"the command cannot be started: {error}", where=where) from error


def _notice_watch(context: JobContext) -> NoticeWatch | None:
    """Return how a worker waits for the notice of a preemption; None if its machines announce none."""
    if not (command := context.allocation.notice):
        return None
    grace = context.job.command.grace_period
    return NoticeWatch(command, grace, keep=max(grace, context.job.watch.verdict_grace) + KEEP_MARGIN)


def _prepare_worker(context: JobContext, host: Host) -> str:
    """Create the output directory, and remove what earlier attempts left on the worker's disk; return its home.

    Raises:
        TpuxError: one of them is still running, as on a worker that was unreachable while it was terminated, and is
            being killed: the command never runs beside it. Or the directory cannot be created.
    """
    key, attempt = process.worker_key(context.job.key, host.worker.index), context.state.attempt
    directory = context.state.run.output_dir
    prepared = job_runs.prepare(host, key, attempt, "" if is_url(directory) else directory)
    if prepared.running:
        raise _still_running(context, host, key)
    if prepared.problem:
        hint = "job.output_dir, if the config has it, must be a directory where the user may write"
        where = f"worker {host.worker.index}"
        raise TpuxError(f"the output directory cannot be created: {prepared.problem}", where=where, hint=hint)
    return prepared.home


def _still_running(context: JobContext, host: Host, key: str) -> TpuxError:
    """Kill what is still running of earlier attempts, and return the error that says so."""
    attempt = context.state.attempt
    hung: list[int] = []
    for run in job_runs.unfinished(host, key):
        if run.attempt < attempt and process.stop(host, run, signal="KILL"):
            hung += hung_processes(host, run)
    message, hint = "an earlier attempt was still running here; it is being killed", ""
    if hung:
        message, job = describe_hung(hung, " of an earlier attempt"), int(context.state.id)
        hint = f"repair the mount, or take other machines: tpux stop {job} --release; then: tpux resume {job}"
    return TpuxError(message, where=f"worker {host.worker.index}", hint=hint)


def _poll(host: Host, run: RemoteProcess, log: Path, silent: int = 0) -> Status:
    status = fetch.poll(host, run, log, silent=silent)
    return status if status.phase != "absent" else _probe(host, run, log)


def _probe(host: Host, run: RemoteProcess, log: Path) -> Status:
    """Return the state of a process that was started; one that no longer exists is lost."""
    status = fetch.poll(host, run, log, probe=True)
    if status.phase == "absent":
        return Status("lost", reason="the process is no longer on the worker")
    return status
