"""Terminate a job's processes: what a stop request does, and what precedes the end or the restart of an attempt.

The environment's own steps come first (a container outlives its client), then SIGTERM to every process of the run,
and after `command.grace_period` SIGKILL.
"""

from __future__ import annotations

from tpux.backoff import Backoff
from tpux.console import format_size
from tpux.errors import TpuxError
from tpux.lifecycle import attempt, poll
from tpux.lifecycle.allocation import inspect_machines
from tpux.lifecycle.context import JobContext, Next
from tpux.lifecycle.cut_off import TRANSPORT_HOOKS
from tpux.lifecycle.end_run import end_run, mark_run
from tpux.lifecycle.endings import has_succeeded, record_end
from tpux.lifecycle.failure import deletes_machines, release_time, write_attempt_end
from tpux.lifecycle.lost_workers import VERDICT_POLL, unreachable_report
from tpux.lifecycle.tasks import PATIENCE, TaskGroup, WorkerTask, retry_unreachable, run_steps
from tpux.model.events import StateChanged
from tpux.model.machines import Worker
from tpux.model.steps import Step, Steps
from tpux.plugin.guard import PluginError, UnusablePluginError
from tpux.plugin.selected import transports
from tpux.remote import process
from tpux.remote.hung import describe_hung
from tpux.remote.process import RemoteProcess, Status
from tpux.remote.calls import WorkerCalls
from tpux.store import files, requests

RUN_TRIES = 2
"""How often the environment is called for the steps that end the program."""
RUN_BACKOFF = Backoff(1, 60)
FETCH_TIMEOUT = 60.0
"""Seconds for which output is fetched from machines that are deleted next, or cannot be fetched from others."""
FETCH_AT_ONCE = 4 * 1024 * 1024
"""Bytes of a worker's output that are then fetched at a time."""
FETCH_INTERVAL = 0.05
"""Seconds between two fetches, in which another request may be applied."""
SOLVE_STEPS = "solve-"
"""What the names of the solvers' steps begin with."""
FETCH_REPORT_AFTER = 2.0
"""Seconds after which a job that is stopped says that it fetches output."""
FETCH_REPORT_INTERVAL = 10.0
"""Seconds between two reports of how much."""


def stopping(context: JobContext) -> Next:
    """Terminate the processes on every worker; once that is confirmed the job is stopped.

    It has succeeded if its program had ended before, with exit code 0 everywhere: what the workers have
    recorded decides.
    Machines that are deleted next need no confirmation: each worker that does not answer is tried once.
    """
    if problem := _cut_off_transport(context) or _unusable_transport(context):
        return _stopped_without_termination(context, problem)
    deleting, delete_job = deletes_machines(context), context.state.last_request.get("action") == "delete"
    delay = terminate_processes(context) if context.state.allocation is not None else None
    if delay is not None:
        _report_unreachable(context)
    if context.state.attempt_open and not delete_job:
        _drain_output(context, FETCH_AT_ONCE if deleting else poll.MAX_FETCH)
    if delay is not None:
        return Next(after=delay)
    missing = ""
    if context.state.attempt_open:
        if not delete_job:
            fetched = _fetch_final_output(context, deleting=deleting)
            if fetched is None:
                return Next(after=FETCH_INTERVAL)
            missing = fetched
        _write_attempt_end(context)
    hung = "".join(f"; {text}" for text in context.terminator.hung.values()) if context.terminator else ""
    return _ended(context, f"{missing}{hung}{_unusable_environment(context)}")


def _write_attempt_end(context: JobContext) -> None:
    """Write that the attempt was stopped, or has succeeded before the stop."""
    # Nobody asks the allocator any more whether a signal was that of a preemption.
    write_attempt_end(context, None, stopped=not has_succeeded(context, ended_early=True, lost=True))


def _ended(context: JobContext, problems: str) -> Next:
    """Return the transition of a job whose programs have ended: to succeeded if its attempt has, else to stopped.

    Args:
        context: the job.
        problems: what is to be added to the reason, for people.
    """
    if context.state.run.succeeded and not context.job.job.loop:
        why = f"{requests.SUCCEEDED}{problems}"
        return Next(StateChanged(to="succeeded", why=why, release_at=release_time(context, "succeeded")))
    return stopped(context, f"{requests.STOPPED}{problems}")


def _report_unreachable(context: JobContext) -> None:
    """Show which workers the stop waits for, and what does not wait for them."""
    if problem := unreachable_report(context):
        job = int(context.state.id)
        if not deletes_machines(context) and deletes_machines(context, if_released=True):
            delete = f" or `tpux delete {job}`" if context.job.tpu.release != "never" else ""
            problem = f"{problem}; `tpux stop {job} --release`{delete} deletes the machines without waiting for it"
        context.waiting(f"{requests.STOPPING}: {problem}")
    elif context.state.why.startswith(requests.STOPPING):
        context.waiting(requests.STOPPING)


def _fetch_final_output(context: JobContext, *, deleting: bool) -> str | None:
    """Fetch more of the output of programs that have ended; for at most `FETCH_TIMEOUT` if the machines are deleted.

    Args:
        context: the job.
        deleting: the machines are deleted next. Otherwise a worker that does not answer is tried again for as long.

    Returns:
        What was not fetched, for people; None if there is more to fetch.
    """
    terminator, now = context.terminator, context.clock.monotonic()
    if terminator is None:
        return ""  # the machines were lost before
    terminator.ended_at = now if terminator.ended_at is None else terminator.ended_at
    unreachable = context.connections.unreachable.keys() & attempt.workers(context).keys()
    max_fetch = FETCH_AT_ONCE if deleting else poll.MAX_FETCH
    more, errors = poll.drain_output(context, without=unreachable, max_fetch=max_fetch)
    in_time = now - terminator.ended_at < FETCH_TIMEOUT
    if (more and (in_time or not deleting)) or (errors and in_time and not deleting):
        _report_fetching(context, terminator)
        return None
    missing = [f"; the output of worker {index} was not fetched: it is unreachable" for index in sorted(unreachable)]
    for index, error in errors.items():
        place = "" if deleting else f"; it is in ~/{attempt.command_process(context, index).output} on the worker"
        missing.append(f"; the final output of worker {index} was not fetched: {error.message}{place}")
    for index, count in poll.count_missing_output(context, more).items():
        number = "an unknown number of" if isinstance(count, TpuxError) else count
        missing.append(f"; {number} bytes of the output of worker {index} were not fetched")
    return "".join(missing)


def _report_fetching(context: JobContext, terminator: Terminator) -> None:
    """Show that the stop waits for output, and how much there is so far, now and then."""
    now = context.clock.monotonic()
    if terminator.ended_at is None or now < (terminator.report_at or terminator.ended_at + FETCH_REPORT_AFTER):
        return
    terminator.report_at = now + FETCH_REPORT_INTERVAL
    logs = [context.record.output_log(context.state.attempt, index) for index in attempt.workers(context)]
    size = format_size(sum(map(files.length, logs)))
    context.waiting(f"{requests.STOPPING}: fetching the rest of the output, {size} so far")


def stopped(context: JobContext, why: str) -> Next:
    """Return the transition to stopped."""
    return Next(StateChanged(to="stopped", why=why, release_at=release_time(context, "stopped")))


def _unusable_transport(context: JobContext) -> str:
    """Return the message to the user if the transport's plugin is not usable; "" if it is, or is not needed.

    Raises:
        UnusablePluginError: it is waited for.
    """
    if context.state.allocation is None or deletes_machines(context):
        return ""
    first = context.allocation.transport
    through = [name for name in transports(context.job.sections) if name != context.job.tpu.allocation_mode]
    for name in dict.fromkeys([first, *through]):
        try:
            context.plugins.load(name)
        except UnusablePluginError as error:
            if not context.may_leave_out(error):
                raise
            return error.message
    return ""


def _unusable_environment(context: JobContext) -> str:
    """Return the message to the user if the environment's plugin is not usable, so that its steps were left out."""
    if (name := context.job.environment) is None or context.plugins.can_load(name):
        return ""
    return f"; the plugin {name} is not usable, so what it started apart from the program may still run"


def _stopped_without_termination(context: JobContext, problem: str) -> Next:
    """Return the transition of a job to stopped whose workers cannot be reached because of their transport."""
    context.log("tpu.log", f"{problem}: no process is terminated, and the final output may be missing")
    if context.state.attempt_open:
        _write_attempt_end(context)
    job = int(context.state.id)
    todo = f"`tpux stop {job} --release` releases the machines, `tpux resume {job}` connects again"
    return _ended(context, f"; {problem}, so programs may still run on the workers: {todo}")


def _drain_output(context: JobContext, max_fetch: int) -> None:
    """Fetch what the programs write while they end, and record which have ended; none is started any more."""
    for index in attempt.workers(context, without=context.connections.unreachable):
        context.record.output_log(context.state.attempt, index).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    running = attempt.open_workers(context, without=context.connections.unreachable)
    probe_at = context.clock.monotonic() + poll.PROBE_EVERY
    polls = {index: poll.PollState(probe_at) for index in running}
    calls: WorkerCalls[Status] = context.connections.calls(poll.POLL)
    polled = calls.make(running, lambda _, worker: poll.poll_worker(context, polls, worker, max_fetch), PATIENCE)
    for index, status in polled.items():
        if isinstance(status, Status) and status.phase == "ended":
            record_end(context, index, status)


class Terminator:
    """Terminates, on all workers, the command of the current attempt, or a setup that has not come to one.

    It can be started again at any time.

    Attributes:
        ended_before: whether the command was found to have ended before anything was terminated on a worker, by worker.
        ended_at: when the processes had ended, if output is fetched after that (monotonic).
        report_at: when that is to be reported next (monotonic); None before the first time.
    """

    def __init__(self, context: JobContext) -> None:
        self._context = context
        self._inspect_at = 0.0
        self.ended_before: dict[int, bool] = {}
        self.ended_at: float | None = None
        self.report_at: float | None = None
        # Later than the first termination of an attempt only the times tell who has ended a program.
        is_first = context.terminating_since is None and context.state.run.failure is None
        asked = attempt.open_workers(context).keys() if is_first and context.state.attempt_open else ()
        tasks = {
            worker.index: self._terminate(worker, ask=worker.index in asked) for worker in present_workers(context)
        }
        self._tasks = TaskGroup(context, tasks, "a step that ends its program")
        if context.terminating_since is None:
            context.terminating_since = context.clock.now()

    def advance(self) -> float | None:
        """Advance termination on every worker.

        Returns:
            Seconds until the next call, or None when all processes have ended, except on machines that are gone.
        """
        delay, unreachable = self._tasks.advance(), self._context.connections.unreachable.keys()
        if delay is None or not self._tasks.open <= unreachable or "inspect" in self._context.cut_off:
            return delay
        if (now := self._context.clock.monotonic()) < self._inspect_at:
            return delay  # the other workers are not to wait for the answer each time
        self._inspect_at = now + VERDICT_POLL
        return None if inspect_machines(self._context).failure else delay

    def _terminate(self, worker: Worker, *, ask: bool) -> WorkerTask[list[int]]:
        """Terminate what runs on one worker; before that, ask whether the command has ended by itself."""
        context, command = self._context, attempt.command_process(self._context, worker.index)
        if ask:
            asked = retry_unreachable(context, worker, lambda host: process.has_ended(host, command), any_error=True)
            self.ended_before[worker.index] = yield from asked
        return (yield from _terminate(context, worker))

    @property
    def hung(self) -> dict[int, str]:
        """Which processes could not be ended, by worker, for people."""
        return {index: _describe_hung(index, pids) for index, pids in sorted(self._tasks.results.items()) if pids}


class StackSaver:
    """Saves, on all workers that answer, the stacks of a program that is about to be ended because it is silent."""

    def __init__(self, context: JobContext) -> None:
        reachable = attempt.open_workers(context, without=context.connections.unreachable)
        tasks = {index: _save_stacks(context, worker) for index, worker in reachable.items()}
        self._tasks = TaskGroup(context, tasks, "a step that saves stacks")

    def advance(self) -> float | None:
        """Continue; return the seconds until the next call, None when it is done."""
        return self._tasks.advance()

    @property
    def saved(self) -> int:
        """The number of processes whose stacks were saved so far."""
        return sum(self._tasks.results.values())


def _save_stacks(context: JobContext, worker: Worker) -> WorkerTask[int]:
    yield from ()
    try:
        return process.save_stacks(context.connections.host(worker), attempt.command_process(context, worker.index))
    except TpuxError as error:  # one try: the program must be ended, with or without its stacks
        context.log("tpu.log", f"worker {worker.index}: its stacks could not be saved: {error.message}")
        return 0


def present_workers(context: JobContext) -> tuple[Worker, ...]:
    """Return the workers that the job holds, without those of slices that are lost and replaced next."""
    return (context.state.surviving or context.allocation).workers


def terminate_processes(context: JobContext) -> float | None:
    """Advance the termination of all that the job runs; begin it if it has not begun. See `Terminator.advance`."""
    context.terminator = context.terminator or Terminator(context)
    return context.terminator.advance()


def _terminate(context: JobContext, worker: Worker) -> WorkerTask[list[int]]:
    hung: list[int] = []
    for run in _runs_to_terminate(context, worker):
        if run.name == attempt.COMMAND and (steps := (yield from _stop_steps(context, worker))):
            yield from mark_run(context, worker, run)
            name = f"stop-{context.state.attempt}"
            yield from run_steps(context, worker, _each(steps), log="stop", name=name, any_error=True)
        hung += yield from end_run(context, worker, run)
    if hung:
        context.log("tpu.log", _describe_hung(worker.index, hung))
    return hung


def _describe_hung(worker: int, pids: list[int]) -> str:
    return f"worker {worker}: {describe_hung(pids)}"


def _runs_to_terminate(context: JobContext, worker: Worker) -> list[RemoteProcess]:
    state, key = context.state, process.worker_key(context.job.key, worker.index)
    if not state.attempt_ready:
        # A setup that was interrupted. What a completed one has started (the daemon of a mount) keeps running.
        return [RemoteProcess(key, state.attempt + 1, f"r{state.round}-*")]
    runs = [attempt.command_process(context, worker.index)] if worker.index in attempt.workers(context) else []
    if state.state == "stopping" and state.run.ended and state.action.solve:  # perhaps repairs before the next attempt
        runs.append(RemoteProcess(key, state.attempt + 1, f"r{state.round}-{SOLVE_STEPS}*"))
    return runs


def _stop_steps(context: JobContext, worker: Worker) -> WorkerTask[tuple[Step, ...]]:
    """Return the steps of the environment that end the program; none if its plugin keeps failing, or blocks."""
    cut_off = context.cut_off
    if call := cut_off.get("run") or cut_off.get("prepare_command"):
        context.log("tpu.log", f"worker {worker.index}: {call}; its steps that end the program are left out")
        return ()
    for retry in range(RUN_TRIES):
        try:
            return attempt.command(context, worker).stop
        except UnusablePluginError as error:
            context.log("tpu.log", f"worker {worker.index}: {error.message}; its steps are left out")
            return ()
        except PluginError as error:
            context.log("tpu.log", f"worker {worker.index}: {error.message}; it is needed to end the program")
        yield RUN_BACKOFF.delay(retry)
    return ()


# --- hooks that do not return -------------------------------------------------------------------


def _cut_off_transport(context: JobContext) -> str:
    """Return the message about a call of the transport that was cut off; "" if none was."""
    cut_off = context.cut_off
    return next((cut_off[hook] for hook in TRANSPORT_HOOKS if hook in cut_off), "")


def _each(steps: tuple[Step, ...]) -> Steps:
    for step in steps:  # noqa: UP028  (a step's result is sent, which `yield from` a tuple does not accept)
        yield step
