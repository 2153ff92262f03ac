"""Run the command: start it once on each worker, fetch its output, and notice when the attempt is over."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from tpux.errors import HostUnreachableError, TpuxError
from tpux.lifecycle import lost_workers, policy
from tpux.lifecycle.allocation import inspect_machines
from tpux.lifecycle.attempt import open_workers
from tpux.lifecycle.context import JobContext, Next
from tpux.lifecycle.endings import record_end, record_notice
from tpux.lifecycle.failure import (
    finish_attempt,
    lost_slices,
    next_state,
    notice_failure,
    plugin_failure,
    resets_restarts,
)
from tpux.lifecycle.finished import Collection, FinishedCheck, has_finished
from tpux.lifecycle.poll import (
    POLL,
    RETRY_BACKOFF,
    PollState,
    drain_output,
    is_quiet,
    poll_worker,
    read_notices,
)
from tpux.lifecycle.progress import ProgressReader
from tpux.lifecycle.resources import ResourceWatch
from tpux.lifecycle.stop import StackSaver, Terminator, terminate_processes
from tpux.lifecycle.stragglers import Stragglers, has_failed
from tpux.lifecycle.tasks import PATIENCE
from tpux.model.events import AttemptRunning, AttemptTerminating
from tpux.model.failures import Failure
from tpux.model.machines import Inspection, MachineStatus, Worker
from tpux.plugin.guard import PluginError
from tpux.remote.process import Status
from tpux.remote.calls import WorkerCalls

FIRST_DELAY = 0.05
FINAL_PATIENCE = 60.0
"""Real seconds to wait for the final output of machines that are gone."""
SILENT, VERDICT = "silent", "verdict"
"""Conditions whose observed time is counted: no worker writes output; all have ended, and it is checked whether they
are preempted."""


@dataclass
class Watch:
    """What is kept in memory of a running attempt, times by the monotonic clock; a new supervisor starts empty.

    Attributes:
        polls: polling state by worker.
        delay: seconds until the next poll; it grows while there is no output.
        machines: the allocator's last answer.
        doubt: why it is not believed yet, "" if it is.
        inspect_at: when the allocator is asked next.
        failure: why tpux ends the attempt early, if it does.
        last_tries: the workers that count as lost if they do not answer now.
        drained: the output was fetched after the end of all processes.
        collection: what detectors read on the workers.
        finished: asks detectors whether a silent program has finished.
        progress: reads from the output how far the program has come.
        resources: watches memory and disks of the workers.
        stacks: saves the stacks of a stalled program before it is ended.
        stragglers: workers on which the program runs on after it has ended on others.
        quiet_until: until when a step does nothing but ask whether the program runs on, silently.
    """

    calls: WorkerCalls[Status]
    collection: Collection
    finished: FinishedCheck
    resources: ResourceWatch
    polls: dict[int, PollState] = field(default_factory=dict)
    delay: float = FIRST_DELAY
    machines: Inspection = field(default_factory=lambda: Inspection(MachineStatus("ready")))
    doubt: str = ""
    inspect_at: float = 0.0
    failure: Failure | None = None
    last_tries: set[int] = field(default_factory=set)
    drained: bool = False
    progress: ProgressReader = field(default_factory=ProgressReader)
    stacks: StackSaver | None = None
    stragglers: Stragglers = field(default_factory=Stragglers)
    quiet_until: float = 0.0


def _new_watch(context: JobContext) -> Watch:
    calls: WorkerCalls[Status] = context.connections.calls(POLL)
    collection = Collection(context)
    resets_restarts(context)  # its time is counted from now on
    return Watch(calls, collection, FinishedCheck(context, collection), ResourceWatch(context))


def running(context: JobContext) -> Next:
    """Poll every worker that has not ended; finish the attempt once all have, or the machines are gone."""
    if not context.state.attempt_open:
        return next_state(context)  # crash recovery: the previous supervisor died after writing how it ended
    watch = context.watch = context.watch or _new_watch(context)
    if _is_quiet(context, watch):
        return Next(after=watch.delay)
    ending = bool(context.state.endings or context.terminator or watch.failure)
    news = _poll_workers(context, watch, ask_all=ending)  # an end is noticed sooner by asking
    watch.progress.update(context, news=news)
    watch.resources.update(context)
    watch.failure = notice_failure(context) or watch.failure or context.state.run.failure
    watch.collection.begin_ended()
    collecting = watch.collection.advance()
    if context.clock.monotonic() >= watch.inspect_at and _machines_are_lost(context, watch):
        return finish_attempt(context, watch.machines, watch.failure)
    if not (open_ := open_workers(context)):
        return _finish(context, watch)
    _report_problems(context, watch)
    silent = _check_timeouts(context, watch)
    if context.job.command.finished_by and not context.terminator:
        _check_finished(context, watch, silent, collecting)
    if watch.failure or context.terminator:
        return _terminate_remaining(context, watch, open_)
    watch.delay = FIRST_DELAY if news else min(watch.delay * 1.5, context.job.watch.poll_every)
    watch.quiet_until = 0.0 if news or collecting is not None else _next_duty(context, watch)
    return Next(after=watch.delay if collecting is None else min(watch.delay, collecting))


def _next_duty(context: JobContext, watch: Watch) -> float:
    """Return until when there is nothing to do as long as the program runs on, silently; 0 if there is something."""
    state, connections = context.state, context.connections
    wrong = bool(connections.unreachable or watch.doubt or watch.machines.plugin_error or watch.resources.problem)
    started = state.run.running and watch.polls.keys() >= open_workers(context).keys()
    if wrong or state.endings or not started or connections.threads.busy():
        return 0.0
    return min(watch.inspect_at, watch.progress.next_at, watch.resources.next_at)


def _is_quiet(context: JobContext, watch: Watch) -> bool:
    """Return whether nothing is to be done, and no worker has anything new: many jobs wait most of the time."""
    now, job = context.clock.monotonic(), context.job
    if now >= watch.quiet_until or watch.failure or context.terminator:
        return False
    watch.delay = min(watch.delay * 1.5, job.watch.poll_every)
    if not all(is_quiet(poll, now) for poll in watch.polls.values()):
        return False
    stalled_after = math.inf if job.job.stalled_after is None else job.job.stalled_after
    asks_after = job.watch.straggler_grace if job.command.finished_by else math.inf
    return _observe_silence(context, watch) < min(stalled_after, asks_after)


def _observe_silence(context: JobContext, watch: Watch) -> float:
    """Return for how many seconds no worker was observed to write anything; 0 if that does not matter."""
    # While a worker cannot be asked, it is not known whether it writes anything.
    observable = watch.polls and not watch.calls.pending and not context.connections.unreachable
    matters = context.job.job.stalled_after is not None or context.job.command.finished_by
    interval = max(watch.delay, context.job.watch.poll_every)
    return context.observed.observe(SILENT, interval) if observable and matters else 0.0


def _machines_are_lost(context: JobContext, watch: Watch) -> bool:
    """Ask the allocator about the machines, and try workers that are overdue.

    Returns:
        True if the attempt is over: all machines are lost, or the program has finished before. Programs that run on, on
        the other slices of a multislice, are terminated first: they can save their work.
    """
    machines = watch.machines = inspect_machines(context)
    watch.inspect_at = context.clock.monotonic() + machines.status.poll_after
    if machines.failure:
        _poll_workers(context, watch, FINAL_PATIENCE, ask_all=True)  # for their final output
    answering = open_workers(context, without=[*context.connections.unreachable, *watch.calls.pending])
    watch.doubt = lost_workers.doubt_loss(context, machines.failure, answering)
    if watch.doubt:
        watch.machines = replace(machines, failure=None, undecided=True)
        watch.inspect_at = context.clock.monotonic() + lost_workers.VERDICT_POLL
    elif machines.failure:
        if not (answering or lost_slices(context, machines.failure)) or has_finished(context, machines, watch.failure):
            return True
        watch.failure = watch.failure or machines.failure
    if machines.status.state == "ready" and not watch.failure:
        _check_overdue_workers(context, watch)
    return False


def _poll_workers(context: JobContext, watch: Watch, patience: float = PATIENCE, *, ask_all: bool = False) -> bool:
    """Start or poll the command on each worker, and write which have ended.

    Args:
        context: the job.
        watch: the polling state.
        patience: real seconds to wait for the answers; those of slower workers are taken by a later step.
        ask_all: also workers that are known without asking to have nothing new, which shows whether they answer.

    Returns:
        Whether anything is new.
    """
    news = False
    due = _due_workers(context, watch, ask_all=ask_all)
    answers = watch.calls.make(due, lambda _, worker: poll_worker(context, watch.polls, worker), patience)
    for index, answer in answers.items():
        worker = context.allocation.workers[index]
        if isinstance(answer, PluginError) and context.is_last_try(answer):
            watch.failure = watch.failure or plugin_failure(answer, index)
            continue
        if isinstance(answer, TpuxError):
            started = context.state.run.running or index in watch.polls
            if not isinstance(answer, HostUnreachableError) and (isinstance(answer, PluginError) or not started):
                raise answer
            _mark_unreachable(context, watch, worker, answer)
            continue
        context.connections.mark_reachable(worker)
        watch.last_tries.discard(index)
        if answer.output or answer.truncated:
            context.observed.end(SILENT)
        if answer.notice:
            record_notice(context, index, answer.notice)
        news |= bool(answer.output) or answer.phase != "running"
        if answer.phase in {"ended", "lost"}:
            record_end(context, index, answer)
    if not context.state.run.running and watch.polls.keys() >= open_workers(context).keys():
        context.write(AttemptRunning(attempt=context.state.attempt))
        news = True
    return news


def _due_workers(context: JobContext, watch: Watch, *, ask_all: bool) -> dict[int, Worker]:
    """Return the workers to poll, or to start the command on; see `_poll_workers`."""
    now, polls = context.clock.monotonic(), watch.polls.items()
    waiting = [index for index, poll in polls if poll.retry_at > now]
    if not ask_all:
        waiting += [index for index, poll in polls if poll.watched and is_quiet(poll, now)]
    due = open_workers(context, without=waiting)
    if watch.failure:  # start none that was not started yet
        due = {index: worker for index, worker in due.items() if index in watch.polls}
    return due


def _mark_unreachable(context: JobContext, watch: Watch, worker: Worker, error: TpuxError) -> None:
    """Record that a worker did not answer, or failed; the allocator is asked at once, and after `watch.lost_after`.

    Args:
        context: the job.
        watch: what is known of the attempt.
        worker: the worker.
        error: why it did not answer, or what failed.
    """
    poll = watch.polls.get(worker.index)
    delay = RETRY_BACKOFF.delay(poll.retries) if poll else max(watch.delay, context.job.watch.poll_every)
    if poll:  # without one it was not started yet: the start is tried again
        poll.retry_at = context.clock.monotonic() + delay
        poll.retries += 1
    first = worker.index not in context.connections.unreachable
    context.connections.mark_unreachable(worker, error, delay)
    if worker.index in watch.last_tries:
        watch.failure = watch.failure or lost_workers.lost_worker_failure(context, worker.index)
    if first or worker.index in lost_workers.overdue_workers(context):
        watch.inspect_at = 0.0


def _check_overdue_workers(context: JobContext, watch: Watch) -> None:
    """Try one more login on the workers that are overdue; the attempt ends if one does not answer.

    The allocator has just reported the machines as ready. A call that began before does not count.
    """
    overdue = set(lost_workers.overdue_workers(context)) - context.connections.threads.busy()
    watch.last_tries |= overdue
    for index in overdue:
        if poll := watch.polls.get(index):
            poll.retry_at = 0.0
    if overdue:
        _poll_workers(context, watch, ask_all=True)


def _report_problems(context: JobContext, watch: Watch) -> None:
    """Show which plugin fails, or which workers are unreachable for more than a moment, or short of something."""
    inspect_error = watch.machines.plugin_error
    problem = context.connections.transport_problem or (f"{inspect_error}; retrying" if inspect_error else "")
    problem = problem or watch.doubt or lost_workers.unreachable_report(context) or watch.resources.problem
    hint = "" if problem else watch.stragglers.hint
    problem = problem or watch.stragglers.problem
    context.waiting(f"attempt {context.state.attempt}" + (f": {problem}" if problem else ""), hint=hint)


def _check_timeouts(context: JobContext, watch: Watch) -> float:
    """End the attempt if output has stalled, or if other workers keep running after one failed.

    Returns:
        For how many seconds no worker was observed to write anything.
    """
    interval, stalled_after = max(watch.delay, context.job.watch.poll_every), context.job.job.stalled_after
    silent = _observe_silence(context, watch)
    if stalled_after is not None and watch.progress.progress.compiling:
        stalled_after = max(stalled_after, context.job.watch.compile_timeout)
    # After a failure the others wait for their lost peer: that they are silent is no failure of its own.
    ends_anyway = watch.failure or context.terminator or has_failed(context)
    if stalled_after is not None and silent > stalled_after and not ends_anyway:
        evidence = f"no worker wrote anything for {stalled_after:.0f} s"
        hint = f"if its Python stacks could be saved, they are at the end of its output: {_last_output(context)}"
        watch.failure = Failure("stalled", evidence=evidence, hint=hint, at=context.clock.now())
    if watch.stragglers.are_overdue(context, interval):
        context.terminator = context.terminator or Terminator(context)
    return silent


def _check_finished(context: JobContext, watch: Watch, silent: float, collecting: float | None) -> None:
    """End a silent program if a trusted detector says that it has finished.

    Args:
        context: the job.
        watch: what is known of the attempt.
        silent: for how many seconds no worker has written anything.
        collecting: seconds until the collection is continued; None if there is nothing to collect.
    """
    if finished := watch.finished.advance(silent, collecting, watch.machines):
        context.log("tpu.log", f"ending the program, which has finished and is silent: {finished.evidence}")
        context.terminator = Terminator(context)


def _save_stacks(context: JobContext, watch: Watch) -> float | None:
    """Save the stacks of a stalled program, once; return the seconds until the next call, None when that is done."""
    if watch.failure is None or watch.failure.kind != "stalled" or context.terminator is not None:
        return None
    watch.stacks = watch.stacks or StackSaver(context)
    if (delay := watch.stacks.advance()) is None and watch.stacks.saved:
        hint = f"where it hung is at the end of its output: {_last_output(context)}"
        watch.failure = replace(watch.failure, hint=hint)
    return delay


def _last_output(context: JobContext) -> str:
    return f"tpux logs {int(context.job.id)} -n 50"


def _terminate_remaining(context: JobContext, watch: Watch, open_: dict[int, Worker]) -> Next:
    if watch.failure and context.state.run.failure is None:  # later the exit codes alone would not tell
        context.write(AttemptTerminating(attempt=context.state.attempt, failure=watch.failure))
    if (saving := _save_stacks(context, watch)) is not None:
        return Next(after=saving)
    delay = terminate_processes(context)
    busy = context.connections.threads.busy()  # perhaps it is being started
    not_started = open_.keys() - watch.polls.keys() - busy if watch.failure else set()
    hung = context.terminator.hung.keys() if context.terminator else set()
    if delay is None and open_.keys() <= context.connections.unreachable.keys() | not_started | hung:
        return finish_attempt(context, watch.machines, watch.failure)
    return Next(after=FIRST_DELAY if delay is None else min(delay, 0.5))


def _finish(context: JobContext, watch: Watch) -> Next:
    """Finish an attempt that has ended on every worker: terminate what is left, and inspect the machines."""
    if (delay := terminate_processes(context)) is not None and not context.connections.unreachable:
        return Next(after=delay)
    if not watch.drained:
        more, errors = drain_output(context)
        if more:
            return Next()
        for index, error in errors.items():
            context.log(
                "tpu.log", f"worker {index}: the final output of its child processes may be missing: {error.message}"
            )
        watch.drained = True
    if (delay := watch.collection.advance()) is not None:
        return Next(after=delay)
    if not context.state.run.notice and (delay := _check_for_preemption(context, watch)) is not None:
        return Next(after=delay)
    return finish_attempt(context, watch.machines, watch.failure)


def _check_for_preemption(context: JobContext, watch: Watch) -> float | None:
    """Ask the allocator, and the workers for notices, whether a preemption has ended the command.

    Returns:
        Seconds until the next call; None once the cause is known, or the checks have lasted `watch.verdict_grace`.
    """
    endings, grace = context.state.endings, context.job.watch.verdict_grace
    codes = [(ending.code, ending.signal) for ending in endings.values()]
    announced, unreachable = bool(context.allocation.notice), bool(context.connections.unreachable)
    interval = min(lost_workers.VERDICT_POLL, grace)
    if suspected := policy.may_be_preempted(codes, announced=announced, unreachable=unreachable):
        read_notices(context, interval)
    elif all(code == 0 for code, _ in codes):
        return None
    checked = context.observed.observe(VERDICT, interval) if suspected else grace
    watch.machines = inspect_machines(context)
    if doubt := lost_workers.doubt_loss(context, watch.machines.failure, {}):
        context.waiting(f"the command has ended on all workers; {doubt}")
        read_notices(context, lost_workers.VERDICT_POLL)  # which also shows whether they answer
        return lost_workers.VERDICT_POLL
    if watch.machines.failure or context.state.run.notice:
        return None
    if watch.machines.undecided:
        context.waiting("the command has ended on all workers; checking the machines")
        return watch.machines.status.poll_after
    if checked >= grace:
        return None
    context.waiting(f"the command has ended on all workers; checking for {grace:.0f} s whether they are preempted")
    return interval
