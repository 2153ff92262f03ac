"""Set up the workers: modules in the config's order, workers in parallel, then begin the next attempt."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cached_property

from tpux.backoff import Backoff
from tpux.errors import HostUnreachableError, TpuxError
from tpux.lifecycle.allocation import inspect_machines
from tpux.lifecycle.attempt import command_workers, new_attempt
from tpux.lifecycle.check import (
    IN_PROGRESS,
    describe_failure,
    fingerprint,
    has_check,
    marker_path,
    stale_reason,
)
from tpux.lifecycle.connection import reachable_workers
from tpux.lifecycle.context import JobContext, Next
from tpux.lifecycle.failure import fail_and_release, plugin_failure, record_failure
from tpux.lifecycle.lost_workers import VERDICT_POLL, lost_worker_failure, unreachable_report
from tpux.lifecycle.resume_point import Outputs, ResumePoint, choose, find_outputs
from tpux.lifecycle.stop import CHECK_EVERY, KILL_TIMEOUT, stopped, terminate_processes
from tpux.lifecycle.storage import CheckpointSearch, is_url
from tpux.lifecycle.tasks import DoneSteps, TaskGroup, WorkerTask, retry_unreachable, run_steps, write_marker
from tpux.plugin import spec
from tpux.plugin.events import StateChanged
from tpux.plugin.failures import Failure
from tpux.plugin.guard import PluginError
from tpux.plugin.host import Host
from tpux.plugin.machines import Peer, Worker
from tpux.plugin.steps import Result, Step, Steps
from tpux.remote import job_runs, process
from tpux.remote.steps import GRACE
from tpux.remote.worker_calls import WorkerCalls

LAST_LINES = 3
"""How many lines at the end of a failed step's output are reported."""
RETRY_BACKOFF = Backoff(2, 300)
"""Before a failed setup is tried again."""
_STEP_OF_ROUND = re.compile(r"r(\d+)-")


def setting_up(context: JobContext) -> Next:
    """Set up all workers; once they are ready, write the next attempt and enter `running`."""
    if context.state.attempt_ready:
        return _run_attempt(context)  # crash recovery: the previous supervisor died after writing the attempt
    if context.setup_run is None:
        context.setup_run = SetupRun(context)
    setup = context.setup_run
    delay = setup.advance()
    if problem := unreachable_report(context):
        context.waiting(problem)
    problematic = (setup.failure or context.connections.unreachable) and not context.terminator
    if problematic and (step := _check_machines(context, setup, delay)) is not None:
        return step
    if setup.failure:  # stop setup on the remaining workers first
        delay = terminate_processes(context)
        return record_failure(context, setup.failure) if delay is None else Next(after=delay)
    if delay is not None:
        return Next(after=delay)
    if context.state.setup_only:
        return stopped(context, "workers set up")
    if setup.search is not None and (step := _search_storage(context, setup.search)) is not None:
        return step
    context.write(new_attempt(context, *setup.resume_point))
    return _run_attempt(context)


def _search_storage(context: JobContext, search: CheckpointSearch) -> Next | None:
    """Search for checkpoints in output directories that are URLs; None: it is known which has one."""
    delay = search.advance()
    if search.failure is not None:
        return fail_and_release(context, search.failure)
    if delay is not None and search.why:
        context.waiting(search.why)
    return None if delay is None else Next(after=delay)


def _check_machines(context: JobContext, setup: SetupRun, delay: float | None) -> Next | None:
    """Ask the allocator about the machines, and a lost worker once more; None: they are not what delays the setup."""
    now, lost = context.clock.monotonic(), setup.lost_worker
    if delay is not None and now < setup.inspect_at:
        return None  # the steps of the other workers are not to wait for the answer each time
    machines = inspect_machines(context)
    setup.inspect_at = now + VERDICT_POLL
    if machines.failure:
        return record_failure(context, machines.failure)
    if machines.undecided or (machines.status.state == "unknown" and lost is not None):
        return Next(after=machines.status.poll_after if delay is None else delay)
    if lost is not None and _answers(context, lost):
        context.setup_run = None  # the next one continues where this one was: each step has its name
        return Next()
    return None


def _answers(context: JobContext, index: int) -> bool:
    """Try one more login on a worker that was unreachable; return whether it answers."""
    calls: WorkerCalls[Result] = context.connections.calls("a login")
    worker = context.allocation.workers[index]
    answer = calls.make_all({index: worker}, lambda _, one: context.connections.host(one).run("true"))[index]
    if isinstance(answer, HostUnreachableError):
        context.connections.mark_unreachable(worker, answer, 0.0)
        return False
    if isinstance(answer, TpuxError):
        raise answer
    context.connections.mark_reachable(worker)
    return True


def _run_attempt(context: JobContext) -> Next:
    return Next(StateChanged(to="running", why=f"attempt {context.state.attempt}"))


class SetupRun:
    """The setup of all workers in one round; on the first worker also the search for what to resume from.

    Attributes:
        search: the search in output directories that are URLs; None if there are none.
        inspect_at: when the allocator is asked again about workers that do not answer (monotonic).
    """

    def __init__(self, context: JobContext) -> None:
        self.inspect_at = 0.0
        self._context = context
        only = context.state.setup_only
        numbers, names = (only.workers, only.only) if only else ((), ())
        workers = [worker for worker in context.allocation.workers if not numbers or worker.index in numbers]
        updated = context.state.modules_to_set_up
        names = names if updated is None else updated
        modules = [name for name in context.job.modules if (not names and updated is None) or name in names]
        self._commanded = [] if only is not None else command_workers(context)
        of_all = _Workers(context, self._commanded)
        tasks = {w.index: _set_up_worker(context, w, modules, of_all) for w in workers}
        self._tasks = TaskGroup(context, tasks, "a step of its set-up")
        urls = [directory for directory in context.state.outputs[::-1] if is_url(directory)]
        searched = urls and only is None and not context.state.from_scratch
        self.search = CheckpointSearch(context, urls, context.job.command.checkpoint) if searched else None
        if modules:
            context.waiting(f"setting up {', '.join(modules)} on {len(workers)} worker(s)")

    @property
    def lost_worker(self) -> int | None:
        """The first worker that was unreachable for `watch.lost_after`."""
        return min(self._tasks.unreachable, default=None)

    @property
    def failure(self) -> Failure | None:
        """Why the first worker that could not be set up failed."""
        if self.lost_worker is not None:
            return lost_worker_failure(self._context, self.lost_worker)
        failures = (result for _, result in sorted(self._tasks.results.items()) if isinstance(result, Failure))
        return next(failures, None)

    @property
    def resume_point(self) -> ResumePoint:
        """What the next attempt resumes from: the newest output that all its workers have, or that is in storage."""
        results = [self._tasks.results[worker.index] for worker in self._commanded]
        outputs = [result for result in results if isinstance(result, Outputs)]
        return choose(outputs, self.search.found if self.search else None, self._context.state.outputs)

    def advance(self) -> float | None:
        """Advance the setup on every worker.

        Returns:
            Seconds until the next call; None when all is done, or one worker has failed.
        """
        if self.failure:
            return None  # the setup of the remaining workers is terminated, and not advanced
        delay = self._tasks.advance()
        return None if self.failure else delay


class _Workers:
    """What the set-up of one worker knows of the others.

    Attributes:
        commanded: the workers that will run the command.
    """

    def __init__(self, context: JobContext, commanded: list[Worker]) -> None:
        self.commanded = commanded
        self._context = context

    def peers_of(self, worker: Worker) -> list[Peer]:
        """Return the other workers that one can run a shell on."""
        return [peer for peer in self._reachable if peer.index != worker.index]

    @cached_property
    def _reachable(self) -> list[Peer]:
        """All workers. The transport is asked once, and only if some module has to be set up."""
        return reachable_workers(self._context.plugins, self._context.allocation, self._context.job)


# --- one worker ---------------------------------------------------------------------------------


def _set_up_worker(
    context: JobContext, worker: Worker, modules: list[str], workers: _Workers
) -> WorkerTask[Failure | Outputs | None]:
    """Set up one worker, module by module; return the failure of the first that could not be set up.

    Of a worker that runs the command, return what the next attempt may resume from, the checkpoints on the first one.
    The modules may mount where they are.
    """
    yield from _end_earlier_steps(context, worker)
    if (failure := (yield from _claim_machine(context, worker))) is not None:
        return failure
    for name in modules:
        try:
            failed = yield from _set_up_module(context, worker, name, workers)
        except PluginError as error:
            if not context.is_last_try(error):
                raise
            return plugin_failure(error, worker.index)
        if failed:
            evidence = f"{name}: {describe_failure(*failed, lines=LAST_LINES)}"
            job = int(context.state.id)
            hint = (
                f"all of its output: tpux logs {job} --module {name} --worker {worker.index}; then: tpux resume {job}"
            )
            return Failure("setup", worker.index, evidence, hint, at=context.clock.now())
    if worker not in workers.commanded:
        return None
    return (yield from find_outputs(context, worker, checkpoints=worker == workers.commanded[0]))


def _end_earlier_steps(context: JobContext, worker: Worker) -> WorkerTask[None]:
    """End the steps of earlier rounds that still run: a clean-up would remove what this set-up writes.

    Its supervisor has died, or it took longer than `clean_up.TIMEOUT`. A step that SIGKILL does not end runs no more
    code either, so it is not waited for any longer.
    """
    if context.state.round == 1 or context.state.prepared:
        return
    key, began = process.worker_key(context.job.key, worker.index), context.clock.monotonic()

    def end(host: Host) -> int:
        late = context.clock.monotonic() - began > GRACE
        runs = [
            run
            for run in job_runs.unfinished(host, key)
            if (found := _STEP_OF_ROUND.match(run.name)) and int(found[1]) < context.state.round
        ]
        why = "the workers are set up again"
        return sum(process.stop(host, run, signal="KILL" if late else "TERM", reason=why) for run in runs)

    while left := (yield from retry_unreachable(context, worker, end)):
        if context.clock.monotonic() - began > GRACE + KILL_TIMEOUT:
            context.log("tpu.log", f"worker {worker.index}: {left} process(es) of earlier steps could not be ended")
            return
        yield CHECK_EVERY


def _claim_machine(context: JobContext, worker: Worker) -> WorkerTask[Failure | None]:
    """Return the failure of a worker whose machine another worker of the job has: its command would run only once."""
    if len(context.allocation.workers) == 1:
        return None
    key, round_ = context.job.key, context.state.round
    holder = yield from retry_unreachable(context, worker, lambda host: job_runs.claim_machine(host, key, round_))
    if holder == worker.index:
        return None
    other = context.allocation.workers[holder]
    evidence = f"worker {holder} ({other.address}) and worker {worker.index} ({worker.address}) are the same machine"
    return Failure("config", worker.index, evidence, "give each machine once", at=context.clock.now())


def _set_up_module(
    context: JobContext, worker: Worker, name: str, workers: _Workers
) -> WorkerTask[tuple[Step, Result] | None]:
    """Check one module, set it up if the check fails, and check it again; return the step that failed last.

    Every other try begins at the first step of the one before that has not succeeded, such as a download; the others
    begin at the first step, since what failed may follow from what an earlier one has found.
    """
    marker = fingerprint(context.job.sections.get(name))
    failed: tuple[Step, Result] | None = None
    done = DoneSteps()
    for number in range(1, context.job.setup.tries + 1):
        if number > 1:
            yield RETRY_BACKOFF.delay(number - 2)
        if (yield from _is_ready(context, worker, name, marker, number)):
            return None
        # This marker matches no config until setup has completed: a worker that is half set up is not ready.
        yield from write_marker(context, worker, name, IN_PROGRESS)
        done = done if number % 2 == 0 else DoneSteps(f"{name}-{spec.setup.__name__}-{number}")
        failed = yield from _run_hook(
            context, worker, name, spec.setup, number, done=done, peers=workers.peers_of(worker)
        )
        if failed is None:
            done = DoneSteps()
            failed = yield from _run_hook(context, worker, name, spec.check, number, again=True)
        if failed is None:
            yield from write_marker(context, worker, name, marker)
            return None
    return failed


def _is_ready(context: JobContext, worker: Worker, name: str, marker: bytes, number: int) -> WorkerTask[bool]:
    """Return whether the module was set up with this config, or never by tpux, and its check succeeds."""
    found = yield from retry_unreachable(context, worker, lambda host: host.read((marker_path(name), 0))[0])
    stale = stale_reason(found, marker, has_check=has_check(context.plugins, name))
    if stale or (yield from _run_hook(context, worker, name, spec.check, number)) is not None:
        return False
    if found is None:
        yield from write_marker(context, worker, name, marker)  # from now on a change of the config is noticed
    return True


def _run_hook(
    context: JobContext,
    worker: Worker,
    name: str,
    hook: Callable[..., Steps],
    number: int,
    *,
    again: bool = False,
    done: DoneSteps | None = None,
    **arguments: object,
) -> WorkerTask[tuple[Step, Result] | None]:
    section, what = context.job.sections.get(name), hook.__name__
    steps = context.plugins.call_one(name, hook, job=context.job, config=section, worker=worker, **arguments)
    header = f"round {context.state.round}, try {number}: {what} {name}" + (" again" if again else "")
    process = f"{name}-{what}-{number}" + ("-again" if again else "")
    at_once = hook is spec.check
    return (
        yield from run_steps(context, worker, steps, log=name, name=process, header=header, done=done, at_once=at_once)
    )
