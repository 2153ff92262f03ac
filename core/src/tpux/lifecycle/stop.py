"""Stop a job: terminate its programs, fetch the rest of their output, and end the attempt.

The termination also precedes the end and the restart of an attempt, and the failure of a job whose steps keep raising
errors.
"""

from __future__ import annotations

from dataclasses import replace

from tpux.backoff import Backoff
from tpux.console import format_size
from tpux.errors import TpuxError
from tpux.lifecycle import attempt, programs
from tpux.lifecycle.collected_files import FileCollection
from tpux.lifecycle.decision import deletes_machines, release_time
from tpux.lifecycle.endings import drain_output, has_succeeded, known, record_end
from tpux.lifecycle.loss import VERDICT_POLL, unreachable_report
from tpux.lifecycle.machines import inspect_machines
from tpux.lifecycle.turn import Next, Phase, Turn
from tpux.model.events import Failed, StateChanged
from tpux.model.failures import Failure
from tpux.model.machines import Worker
from tpux.model.steps import Step
from tpux.plugin.guard import AbandonedCallError, PluginError, UnusablePluginError
from tpux.plugin.selected import transports
from tpux.remote import output, process
from tpux.remote.calls import WorkerCalls
from tpux.remote.process import RemoteProcess, Status
from tpux.remote.tasks import WAIT_FOR_ANSWERS, WorkerTask
from tpux.remote.termination import EndedRuns
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
RELEASE_DELAY_UNREADABLE = 3600.0
"""Seconds that the machines of a job are kept whose config can no longer be read."""


class Stopping(Phase):
    """The stop of a job. What it has done so far is in `Turn.termination`."""

    def __init__(self) -> None:
        self._files = FileCollection()

    def restart(self) -> None:
        """Search for the files of `command.collect` again."""
        self._files = replace(self._files)

    def step(self, turn: Turn) -> Next:
        """Terminate the processes on every worker; once that is confirmed the job is stopped.

        It has succeeded if its program had ended before, with exit code 0 everywhere: what the workers have recorded
        decides. Machines that are deleted next need no confirmation: each worker that does not answer is tried once.
        """
        if problem := turn.errors.abandoned_transport() or _unusable_transport(turn):
            return _stopped_without_termination(turn, problem)
        deleting, delete_job = deletes_machines(turn), turn.state.last_request.get("action") == "delete"
        delay = terminate(turn) if turn.state.allocation is not None else None
        if delay is not None:
            _report_unreachable(turn)
        if turn.state.attempt_open and not delete_job:
            _fetch_output(turn, FETCH_AT_ONCE if deleting else output.MAX_FETCH)
        if delay is not None:
            return Next(after=delay)
        missing = left = ""
        if turn.state.attempt_open:
            if delete_job and not deleting and (left := _left_running(turn)):
                turn.store.add_unreleased(turn.state.id, left)  # `tpux delete` prints it, when nothing else is left
            if not delete_job:
                fetched = _fetch_final_output(turn, deleting=deleting)
                if fetched is None:
                    return Next(after=FETCH_INTERVAL)
                missing = fetched
            _write_attempt_end(turn)
        if not delete_job and (delay := self._files.advance(turn)) is not None:
            return Next(after=delay)
        hung = "".join(f"; {text}" for text in turn.termination.hung.values())
        return _ended(turn, f"{missing}{left and f'; {left}'}{hung}{_unusable_environment(turn)}")


def _write_attempt_end(turn: Turn) -> None:
    """Write that the attempt was stopped, or has succeeded before the stop."""
    # Nobody asks the allocator any more whether a signal was that of a preemption.
    attempt.write_end(turn, None, stopped=not has_succeeded(turn, ended_early=True, lost=True))


def _left_running(turn: Turn) -> str:
    """Return on which workers programs may still run, for people: those that were started and do not answer."""
    lost = {
        index: worker.error for index, worker in turn.workers.unreachable.items() if index in turn.state.run.workers
    }
    left = [f"worker {index} ({lost[index]})" for index in sorted(lost) if index not in turn.state.endings]
    return f"programs may still run on {', '.join(left)}" if left else ""


def _ended(turn: Turn, problems: str) -> Next:
    """Return the transition of a job whose programs have ended: to succeeded if its attempt has, else to stopped.

    Args:
        turn: the step.
        problems: what is to be added to the reason, for people.
    """
    if turn.state.run.succeeded and not turn.job.job.loop:
        why = f"{requests.SUCCEEDED}{problems}"
        return Next(StateChanged(to="succeeded", why=why, release_at=release_time(turn, "succeeded")))
    request = turn.state.request
    return stopped(turn, f"{(request and request.reason) or requests.STOPPED}{problems}")


def _report_unreachable(turn: Turn) -> None:
    """Show which workers the stop waits for, and what does not wait for them."""
    if problem := unreachable_report(turn):
        job = turn.number
        if not deletes_machines(turn) and deletes_machines(turn, if_released=True):
            delete = f" or `tpux delete {job}`" if turn.job.tpu.release != "never" else ""
            problem = f"{problem}; `tpux stop {job} --release`{delete} deletes the machines without waiting for it"
        turn.waiting(f"{requests.STOPPING}: {problem}")
    elif turn.state.why.startswith(requests.STOPPING):
        turn.waiting(requests.STOPPING)


def _fetch_final_output(turn: Turn, *, deleting: bool) -> str | None:
    """Fetch more of the output of programs that have ended; for at most `FETCH_TIMEOUT` if the machines are deleted.

    Args:
        turn: the step.
        deleting: the machines are deleted next. Otherwise a worker that does not answer is tried again for as long.

    Returns:
        What was not fetched, for people; None if there is more to fetch.
    """
    termination, now = turn.termination, turn.clock.monotonic()
    if not termination.begun:
        return ""  # the machines were lost before
    termination.ended_at = now if termination.ended_at is None else termination.ended_at
    unreachable = turn.workers.unreachable.keys() & programs.workers(turn).keys()
    max_fetch = FETCH_AT_ONCE if deleting else output.MAX_FETCH
    more, errors = drain_output(turn, without=unreachable, max_fetch=max_fetch)
    in_time = now - termination.ended_at < FETCH_TIMEOUT
    if (more and (in_time or not deleting)) or (errors and in_time and not deleting):
        _report_fetching(turn)
        return None
    missing = [f"; the output of worker {index} was not fetched: it is unreachable" for index in sorted(unreachable)]
    for index, error in errors.items():
        place = "" if deleting else f"; it is in ~/{programs.command_process(turn, index).output} on the worker"
        missing.append(f"; the final output of worker {index} was not fetched: {error.message}{place}")
    every = programs.programs(turn)
    for index, count in output.count_missing(turn.workers, {index: every[index] for index in more}).items():
        number = "an unknown number of" if isinstance(count, TpuxError) else count
        missing.append(f"; {number} bytes of the output of worker {index} were not fetched")
    return "".join(missing)


def _report_fetching(turn: Turn) -> None:
    """Show that the stop waits for output, and how much there is so far, now and then."""
    termination, now = turn.termination, turn.clock.monotonic()
    if termination.ended_at is None or now < (termination.report_at or termination.ended_at + FETCH_REPORT_AFTER):
        return
    termination.report_at = now + FETCH_REPORT_INTERVAL
    logs = [turn.record.output_log(turn.state.attempt, index) for index in programs.workers(turn)]
    size = format_size(sum(map(files.length, logs)))
    turn.waiting(f"{requests.STOPPING}: fetching the rest of the output, {size} so far")


def stopped(turn: Turn, why: str) -> Next:
    """Return the transition to stopped."""
    return Next(StateChanged(to="stopped", why=why, release_at=release_time(turn, "stopped")))


def _unusable_transport(turn: Turn) -> str:
    """Return the message to the user if the transport's plugin is not usable; "" if it is, or is not needed.

    Raises:
        UnusablePluginError: it is waited for.
    """
    if turn.state.allocation is None or deletes_machines(turn):
        return ""
    first = turn.machines.transport
    through = [name for name in transports(turn.job.sections) if name != turn.job.tpu.allocation_mode]
    for name in dict.fromkeys([first, *through]):
        try:
            turn.plugins.load(name)
        except UnusablePluginError as error:
            if not turn.errors.waited_for_plugin(error, turn.clock.monotonic()):
                raise
            if isinstance(error, AbandonedCallError):
                turn.log(f"{error.message}; stopping without it")
            return error.message
    return ""


def _unusable_environment(turn: Turn) -> str:
    """Return the message to the user if the environment's plugin is not usable, so that its steps were left out."""
    if (name := turn.job.environment) is None or turn.plugins.can_load(name):
        return ""
    return f"; the plugin {name} is not usable, so what it started apart from the program may still run"


def _stopped_without_termination(turn: Turn, problem: str) -> Next:
    """Return the transition of a job to stopped whose workers cannot be reached because of their transport."""
    turn.log(f"{problem}: no process is terminated, and the final output may be missing")
    if turn.state.attempt_open:
        _write_attempt_end(turn)
    job = turn.number
    todo = f"`tpux stop {job} --release` releases the machines, `tpux resume {job}` connects again"
    return _ended(turn, f"; {problem}, so programs may still run on the workers: {todo}")


def _fetch_output(turn: Turn, max_fetch: int) -> None:
    """Fetch what the programs write while they end, and record which have ended; none is started any more."""
    unreachable = turn.workers.unreachable
    for program in programs.programs(turn, without=unreachable).values():
        program.log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    running = programs.open_programs(turn, without=unreachable)
    poller = output.Poller(turn.workers, turn.job.watch.poll_every, 0.0, turn.log)
    poller.assume_started(running)
    calls: WorkerCalls[Status] = turn.workers.calls(output.POLL)
    polled = calls.make(
        running, lambda _, each: poller.poll(each, lambda: known(turn), max_fetch=max_fetch), WAIT_FOR_ANSWERS
    )
    for index, status in polled.items():
        if isinstance(status, Status) and status.phase == "ended":
            record_end(turn, index, status)


# --- the termination ----------------------------------------------------------------------------


def terminate(turn: Turn) -> float | None:
    """Advance the termination of all that the job runs, or of a setup that has not come to an attempt; or begin it.

    Returns:
        Seconds until the next call; None when all processes have ended, except on machines that are gone.
    """
    termination = turn.termination
    if not termination.begun:
        # Later than the first termination of an attempt only the times tell who has ended a program.
        is_first = termination.since is None and turn.state.run.failure is None
        asks = is_first and turn.state.attempt_open
        started = programs.programs(turn) if turn.state.attempt_ready else {}
        plans = [_plan(turn, worker, started.get(worker.index), asks=asks) for worker in turn.machines.workers]
        request = turn.state.request
        termination.begin(plans, max(turn.job.command.grace_period, request.grace if request else 0.0))
    delay = termination.advance()
    if delay is None or not termination.waits_for_unreachable or "inspect" in turn.errors.abandoned:
        return delay
    if (now := turn.clock.monotonic()) < termination.inspect_at:
        return delay  # the other workers are not to wait for the answer each time
    if (machines := inspect_machines(turn)) is None:
        return delay
    termination.inspect_at = now + VERDICT_POLL
    return None if machines.failure else delay


def _plan(turn: Turn, worker: Worker, program: output.Program | None, *, asks: bool) -> EndedRuns:
    state, key = turn.state, process.worker_key(turn.job.key, worker.index)
    if not state.attempt_ready:
        # A setup that was interrupted. What a completed one has started (the daemon of a mount) keeps running.
        return EndedRuns(worker, [RemoteProcess(key, state.attempt + 1, f"r{state.round}-*")])
    runs, stop_steps = list[RemoteProcess](), None
    if program is not None:
        runs.append(program.run)

        def stop_steps() -> WorkerTask[tuple[Step, ...]]:
            return _stop_steps(turn, worker)

    if state.state == "stopping" and state.run.ended and state.action.solve:  # perhaps repairs before the next attempt
        runs.append(RemoteProcess(key, state.attempt + 1, f"r{state.round}-{SOLVE_STEPS}*"))
    ask = asks and program is not None and worker.index not in state.endings
    return EndedRuns(worker, runs, stop_steps, ask)


def _stop_steps(turn: Turn, worker: Worker) -> WorkerTask[tuple[Step, ...]]:
    """Return the steps of the environment that end the program; none if its plugin keeps failing, or blocks."""
    abandoned = turn.errors.abandoned
    if call := abandoned.get("run") or abandoned.get("prepare_command"):
        turn.log(f"worker {worker.index}: {call}; its steps that end the program are left out")
        return ()
    for retry in range(RUN_TRIES):
        try:
            return attempt.command(turn, worker).stop
        except UnusablePluginError as error:
            turn.log(f"worker {worker.index}: {error.message}; its steps are left out")
            return ()
        except PluginError as error:
            turn.log(f"worker {worker.index}: {error.message}; it is needed to end the program")
        yield RUN_BACKOFF.delay(retry)
    return ()


# --- a job whose steps keep raising errors ------------------------------------------------------


def fail_after_termination(turn: Turn, failure: Failure) -> Next:
    """Terminate the programs of a job whose steps keep raising errors, fetch their last output, and fail the job."""
    if (delay := terminate(turn)) is not None:
        return Next(after=delay)
    lost = turn.workers.unreachable
    if turn.state.attempt_open:
        more, _ = drain_output(turn, without=lost)
        if more:
            return Next()
    left = [f"; programs may still run on worker {index}: {worker.error}" for index, worker in sorted(lost.items())]
    return Next(fail(turn, failure, "".join(left[:1])))


def fail(turn: Turn, failure: Failure, left: str) -> StateChanged:
    """Write how a job failed whose steps keep raising errors, whatever its rule says; return the change of state.

    Args:
        turn: the step.
        failure: why it fails.
        left: what may still run, for people.
    """
    try:
        release_at = release_time(turn, "failed")
    except TpuxError:  # the config cannot be read: neither can what it says about releasing machines that cost money
        release_at = turn.clock.now() + RELEASE_DELAY_UNREADABLE
    if turn.state.attempt_open:
        attempt.write_end(turn, failure)
    else:
        turn.write(Failed(failure=failure))
    return StateChanged(to="failed", why=f"{failure.evidence}{left}", release_at=release_at)
