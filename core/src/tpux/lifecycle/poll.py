"""One look at one worker's run: it is started, or attached to, or polled, and its output is brought home."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

from tpux.errors import TpuxError
from tpux.lifecycle import attempts
from tpux.lifecycle.context import JobContext
from tpux.plugin.host import Host
from tpux.plugin.machines import Worker
from tpux.plugin.steps import sh
from tpux.remote import process
from tpux.remote.fanout import fanout
from tpux.remote.process import RemoteProcess, Status
from tpux.store import files

PROBE_EVERY = 60.0
"""Seconds of silence after which a run is asked whether its runner still lives; a poll does not tell."""
PROBE_FOUND = 10.0
"""Seconds within which a run that was found running is asked: 100 at once would hold each other's output up."""
ENOUGH = 64 * 1024 * 1024
"""Bytes of one worker's output that one turn brings home, so that other jobs get theirs."""


@dataclass
class PollState:
    """What is known of one worker's run: when it last wrote, when it is probed, when tried again once out of reach."""

    news_at: float
    probe_at: float
    retry_at: float = 0.0
    retry_pause: float = 0.5


def look(context: JobContext, seen: dict[int, PollState], worker: Worker) -> Status:
    """Look at one worker's run, and append what it wrote to its log: the log's length is the next offset.

    Args:
        context: the job.
        seen: what is known of each worker's run; one that is not in it is started, or found started.
        worker: which.

    Raises:
        HostUnreachableError: it did not answer.
        TpuxError: the run cannot be started there.
    """
    host, run, now = context.host(worker), attempts.command_run(context), context.clock.now()
    log = context.output_log(worker.index)
    known = seen.get(worker.index)
    if known is None:
        log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        status = _start_or_attach(context, worker, files.length(log))
        found = bool(context.state.run["running"])
        soon = random.uniform(0, PROBE_FOUND) if found else PROBE_EVERY  # noqa: S311  (no secret)
        known = seen[worker.index] = PollState(news_at=now, probe_at=now + soon)
    elif known.retry_at or now > known.probe_at:
        status = _probe(host, run, files.length(log))
        known.probe_at, known.retry_at, known.retry_pause = now + PROBE_EVERY, 0.0, 0.5
    else:
        status = _poll(host, run, files.length(log))
    if status.output:
        known.news_at, known.probe_at = now, max(known.probe_at, now + PROBE_EVERY)
    return _bring_home(host, run, log, status)


def drain_output(context: JobContext) -> None:
    """Bring home what was still written while the programs were ended: a shell may end before its children."""

    def bring(index: int, worker: Worker) -> None:
        log, run, host = context.output_log(index), attempts.command_run(context), context.host(worker)
        _bring_home(host, run, log, process.poll(host, run, files.length(log)))

    workers = {index: context.allocation.workers[index] for index in attempts.workers(context.state)}
    for index, answer in fanout(workers, bring).items():
        if isinstance(answer, TpuxError):
            context.log("tpu.log", f"worker {index}: its last words may be missing: {answer.message}")


def _bring_home(host: Host, run: RemoteProcess, log: Path, status: Status) -> Status:
    brought = 0
    while True:
        if status.output or not log.exists():
            files.append_output(log, status.output)
        brought += len(status.output)
        if not status.more:
            return status
        if brought >= ENOUGH:
            return Status("running", None, status.output, more=True)
        status = process.poll(host, run, files.length(log))


def _start_or_attach(context: JobContext, worker: Worker, offset: int) -> Status:
    host, run = context.host(worker), attempts.command_run(context)
    if context.state.run["running"]:  # the start was confirmed: whatever is there now, it is not started again
        return _poll(host, run, offset)
    _clear_earlier_attempts(context, host)
    made = host.run(sh("mkdir -p -- {path}", path=str(context.state.run["output_dir"])).script)
    if not made.ok:
        hint = "job.output_dir, if the config has it, must be a place where the user may write"
        raise TpuxError(f"the output directory cannot be made: {made.text}", where=f"worker {worker.index}", hint=hint)
    command = attempts.command(context, worker)
    return process.start(host, run, attempts.script(context), command, offset=offset, wait=0.1)


def _clear_earlier_attempts(context: JobContext, host: Host) -> None:
    """Delete what earlier attempts left on the worker's disk, and never run beside one of them.

    A worker that was out of reach while an attempt was ended may come back with its program still running.
    """
    key, attempt = context.job.key, context.state.attempt
    if attempt == 1 or not process.remove_old(host, key, attempt):
        return
    for run in process.unfinished(host, key):
        if run.attempt < attempt:
            process.stop(host, run, signal="KILL")
    raise TpuxError("an earlier attempt still ran here and is being ended", where=f"worker {host.worker.index}")


def _poll(host: Host, run: RemoteProcess, offset: int) -> Status:
    status = process.poll(host, run, offset)
    return status if status.phase != "absent" else _probe(host, run, offset)


def _probe(host: Host, run: RemoteProcess, offset: int) -> Status:
    """The state of a run that was started before; one that is not there any more is lost."""
    status = process.probe(host, run, offset)
    if status.phase == "absent":
        return Status("lost", reason="the run is no longer on the worker")
    return status
