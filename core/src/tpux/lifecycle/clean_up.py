"""Let the modules of a job that has ended remove from the workers what must not stay there, such as keys.

Machines that are deleted next need none of it. Nothing waits for long: a worker that does not answer is left as it is.
"""

from __future__ import annotations

from tpux.errors import HostUnreachableError, TpuxError
from tpux.lifecycle import policy
from tpux.lifecycle.check import IN_PROGRESS, describe_failure, has_check
from tpux.lifecycle.context import JobContext
from tpux.lifecycle.cut_off import TRANSPORT_HOOKS
from tpux.lifecycle.tasks import TaskGroup, WorkerTask, run_steps, write_marker
from tpux.model.events import CleanUpStarted
from tpux.model.machines import Worker
from tpux.plugin import spec
from tpux.plugin.guard import PluginError

TIMEOUT = 30.0
"""Seconds that the clean-up of all workers may take."""


class CleanUp:
    """The clean-up of all workers of a job that has ended.

    Args:
        context: the job.
        released: it gives the machines up next.
    """

    def __init__(self, context: JobContext, *, released: bool) -> None:
        self.released = released
        self._context = context
        self._began_at = context.clock.monotonic()
        modules = [name for name in context.job.modules[::-1] if _has_clean_up(context, name)]
        if modules:
            context.write(CleanUpStarted())
        workers = context.allocation.workers if modules else ()
        tasks = {worker.index: _clean_up_worker(context, worker, modules, released) for worker in workers}
        self._tasks = TaskGroup(context, tasks, "a step of its clean-up")

    def advance(self) -> float | None:
        """Continue; return the seconds until the next call, None when it is done, or has taken too long."""
        delay = self._tasks.advance()
        late = self._context.clock.monotonic() - self._began_at > TIMEOUT
        if delay is not None and not late:
            return delay
        missing = {index: lost.error for index, lost in self._context.connections.unreachable.items()}
        if delay is not None and not missing:
            self._context.log("tpu.log", f"the clean-up of the workers has not ended within {TIMEOUT:.0f} s")
        for index, error in sorted(missing.items()):
            self._context.log("tpu.log", f"worker {index}: not cleaned up: {error}")
        return None


def clean_up(context: JobContext) -> float | None:
    """Continue the clean-up of the workers of a job that has ended, if one is due.

    It is due when the job has ended, and again when it gives up machines that are not deleted then; not after
    `tpux setup`, unless that failed. The file of secrets is still there: a supervisor that finds it begins again.

    Returns:
        Seconds until the next call; None when nothing is left to do.
    """
    state = context.state
    is_set_up = state.setup_only is not None and state.state == "stopped"
    if state.given_to or state.machines is None or state.releasing or is_set_up:
        return None
    released = state.release_at is not None and context.deadlines.left(state.release_at, state.release_after) <= 0
    if released and _are_deleted(context):
        return None
    is_new = released or (context.record.config_directory / "secrets.json").exists()
    if not is_new or released in context.cleaned_up or _are_unreachable(context):
        return None
    try:
        if context.clean_up is None or context.clean_up.released != released:  # a delete may come while one runs
            context.clean_up = CleanUp(context, released=released)
        delay = context.clean_up.advance()
    except TpuxError as error:  # its config cannot be read any more: the end of a job must not depend on that
        context.log("tpu.log", f"the workers were not cleaned up: {error.message}")
        delay = None
    if delay is None:
        context.clean_up = None
        context.cleaned_up.add(released)
    return delay


def _are_unreachable(context: JobContext) -> bool:
    """Return whether it is known that the workers cannot be reached: they are lost, or a connection has blocked."""
    state, failure = context.state, context.state.failure
    lost = state.state == "failed" and failure is not None and failure.kind in policy.MACHINE_FAILURES
    lost = lost and not context.allocation.borrowed  # of a user's own machines perhaps one is lost
    return lost or any(hook in context.cut_off for hook in TRANSPORT_HOOKS)


def _are_deleted(context: JobContext) -> bool:
    """Return whether the release deletes the machines."""
    machines, release = context.allocation, context.releasable_job.tpu.release
    return machines.costs and (not machines.borrowed or release == "always")


def _has_clean_up(context: JobContext, name: str) -> bool:
    try:
        return context.plugins.implements(name, spec.clean_up)
    except TpuxError as error:
        context.log("tpu.log", f"the workers were not cleaned up by {name}: {error.message}")
        return False


def _clean_up_worker(context: JobContext, worker: Worker, modules: list[str], released: bool) -> WorkerTask[None]:
    job = context.job
    for name in modules:
        try:
            steps = context.plugins.call_one(
                name, spec.clean_up, job=job, config=job.sections.get(name), worker=worker, released=released
            )
            # Without a check only the marker can tell that it is to be set up again, also if the next line is the last.
            if not has_check(context.plugins, name):
                yield from write_marker(context, worker, name, IN_PROGRESS)
            header = f"round {context.state.round}: clean_up {name}" + (" released" if released else "")
            run = f"{name}-clean_up" + ("-released" if released else "")
            failed = yield from run_steps(context, worker, steps, log=name, name=run, header=header, any_error=True)
            problem = describe_failure(*failed) if failed else ""
        except HostUnreachableError:
            raise
        except PluginError as error:
            problem = error.message
        if problem:
            context.log("tpu.log", f"worker {worker.index}: not cleaned up by {name}: {problem}")
