"""Making the workers ready: modules in the config's order, workers in parallel, then the next attempt."""

from __future__ import annotations

from typing import cast

from tpux.errors import TpuxError
from tpux.lifecycle import attempts
from tpux.lifecycle.context import JobContext
from tpux.lifecycle.machine_status import inspect_machines, machines_failure, within_unknown_grace
from tpux.lifecycle.modules import modules, prepare, workers
from tpux.lifecycle.release import release_at
from tpux.lifecycle.restart import recover_or_fail
from tpux.lifecycle.stop import Terminator, terminate_processes
from tpux.lifecycle.tasks import TaskGroup, WorkerTask, retry_unreachable
from tpux.plugin.failures import Failure
from tpux.plugin.machines import Worker
from tpux.plugin.steps import sh


class SetupRun:
    """The set-up of all workers in one round, and then a look at what the next attempt goes on from."""

    def __init__(self, context: JobContext) -> None:
        self._context = context
        self._workers = TaskGroup(context, {w.index: prepare(context, w) for w in workers(context)})
        self._opening: TaskGroup[tuple[str, str | None]] | None = None

    @property
    def failure(self) -> Failure | None:
        """What the first worker that could not be prepared failed with."""
        for index, error in [*self._workers.lost.items(), *(self._opening.lost.items() if self._opening else ())]:
            return Failure("host-lost", index, evidence=error, hint="it was out of reach for watch.lost_after")
        return next((failure for _, failure in sorted(self._workers.endings.items()) if failure), None)

    @property
    def opening(self) -> tuple[str, str | None]:
        """The home directory of the workers, and the output directory to go on from."""
        [answer] = cast("TaskGroup[tuple[str, str | None]]", self._opening).endings.values()
        return answer

    def turn(self) -> float | None:
        """Go on; in how many seconds to go on again, None once all is done or one worker has failed."""
        if self.failure:
            return None  # what goes on on other workers is ended, not driven on
        if self._opening is None:
            if (delay := self._workers.turn()) is not None and not self.failure:
                return delay
            if self.failure or self._context.state.setup_only:
                return None
            first = self._context.chosen()[0]
            self._opening = TaskGroup(self._context, {first.index: _open(self._context, first)})
        return self._opening.turn()


def setting_up(context: JobContext) -> float:
    """Prepare all workers; once they are ready, write the next attempt down and go on to running it."""
    if context.state.attempt_ready:
        return _run_attempt(context)  # a supervisor wrote it down, and was killed before the next word
    if (preparation := context.recalled(SetupRun)) is None:
        preparation = context.recall(SetupRun, lambda: SetupRun(context))
        if words := ", ".join(modules(context)):
            context.waiting(f"setting up {words} on {len(workers(context))} worker(s)")
    delay, failure = preparation.turn(), preparation.failure
    if (failure or context.out_of_reach) and not context.recalled(Terminator):
        machines = inspect_machines(context)
        if gone := machines_failure(context, machines):
            return _give_up(context, gone)
        if within_unknown_grace(context):
            return machines.poll_after if delay is None else delay
    if failure:
        delay = terminate_processes(context)  # other workers are in the middle of it
        return _give_up(context, failure) if delay is None else delay
    if delay is not None:
        return delay
    if context.state.setup_only:
        return _stop_here(context)
    facts = attempts.next_facts(context, *preparation.opening)
    context.unlearn(SetupRun)
    context.write("attempt-started", **facts)
    return _run_attempt(context)


def _run_attempt(context: JobContext) -> float:
    context.move("running", why=f"attempt {context.state.attempt}")
    return 0


def _stop_here(context: JobContext) -> float:
    context.forget()
    context.move("stopped", why="its workers are prepared", release_at=release_at(context, "stopped"))
    return 0


def _give_up(context: JobContext, failure: Failure) -> float:
    context.failed(failure)
    context.unlearn(SetupRun, Terminator)
    return recover_or_fail(context, failure)


def _open(context: JobContext, worker: Worker) -> WorkerTask[tuple[str, str | None]]:
    home = yield from retry_unreachable(context, worker, lambda host: host.run('printf %s "$HOME"'))
    outputs = [str(output["dir"]) for output in reversed(context.state.outputs) if output.get("dir")]
    pattern = context.job.command.checkpoint
    if context.state.from_scratch or not outputs:
        return home.text, None if context.state.from_scratch else ""
    if pattern is None:
        return home.text, outputs[0]
    find = sh(_FIND_CHECKPOINT, directories=outputs, pattern=pattern).script
    found = yield from retry_unreachable(context, worker, lambda host: host.run(find))
    if not found.ok:  # not the same as no checkpoint: the job must not start from scratch for it
        raise TpuxError(f"the checkpoints cannot be looked for: {found.text}", where=f"worker {worker.index}")
    return home.text, found.text or None


# The pattern is expanded by the worker's shell, with IFS empty so that it is never split into words.
_FIND_CHECKPOINT = """
IFS=; pattern={pattern}
for directory in {directories}; do
  for match in "$directory"/$pattern; do
    if [ -e "$match" ]; then printf '%s' "$directory"; exit 0; fi
  done
done
"""
