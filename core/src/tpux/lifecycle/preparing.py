"""Making the workers ready: modules in the config's order, workers in parallel, then the next attempt."""

from __future__ import annotations

from typing import cast

from tpux.errors import TpuxError
from tpux.failures import Failure
from tpux.lifecycle import attempts
from tpux.lifecycle.ending import Ender, end_leftovers
from tpux.lifecycle.machines import look_at_machines, machines_failure, undecided
from tpux.lifecycle.modules import modules, prepare, workers
from tpux.lifecycle.recovering import recover_or_fail
from tpux.lifecycle.releasing import release_at
from tpux.lifecycle.stories import Stories, Story, patiently
from tpux.lifecycle.work import Work
from tpux.machines import Worker
from tpux.steps import sh


class Preparation:
    """The set-up of all workers in one round, and then a look at what the next attempt goes on from."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._workers = Stories(work, {w.index: prepare(work, w) for w in workers(work)})
        self._opening: Stories[tuple[str, str | None]] | None = None

    @property
    def failure(self) -> Failure | None:
        """What the first worker that could not be prepared failed with."""
        for index, error in [*self._workers.lost.items(), *(self._opening.lost.items() if self._opening else ())]:
            return Failure("host-lost", index, evidence=error, hint="it was out of reach for watch.lost_after")
        return next((failure for _, failure in sorted(self._workers.endings.items()) if failure), None)

    @property
    def opening(self) -> tuple[str, str | None]:
        """The home directory of the workers, and the output directory to go on from."""
        [answer] = cast("Stories[tuple[str, str | None]]", self._opening).endings.values()
        return answer

    def turn(self) -> float | None:
        """Go on; in how many seconds to go on again, None once all is done or one worker has failed."""
        if self.failure:
            return None  # what goes on on other workers is ended, not driven on
        if self._opening is None:
            if (delay := self._workers.turn()) is not None and not self.failure:
                return delay
            if self.failure or self._work.state.only_setup:
                return None
            first = self._work.chosen()[0]
            self._opening = Stories(self._work, {first.index: _open(self._work, first)})
        return self._opening.turn()


def setting_up(work: Work) -> float:
    """Prepare all workers; once they are ready, write the next attempt down and go on to running it."""
    if work.state.attempt_ready:
        return _run_attempt(work)  # a supervisor wrote it down, and was killed before the next word
    if (preparation := work.recalled(Preparation)) is None:
        preparation = work.recall(Preparation, lambda: Preparation(work))
        if words := ", ".join(modules(work)):
            work.waiting(f"setting up {words} on {len(workers(work))} worker(s)")
    delay, failure = preparation.turn(), preparation.failure
    if (failure or work.out_of_reach) and not work.recalled(Ender):
        machines = look_at_machines(work)
        if gone := machines_failure(work, machines):
            return _give_up(work, gone)
        if undecided(work):
            return machines.look_again_after if delay is None else delay
    if failure:
        delay = end_leftovers(work)  # other workers are in the middle of it
        return _give_up(work, failure) if delay is None else delay
    if delay is not None:
        return delay
    if work.state.only_setup:
        return _stop_here(work)
    facts = attempts.next_facts(work, *preparation.opening)
    work.unlearn(Preparation)
    work.write("attempt-started", **facts)
    return _run_attempt(work)


def _run_attempt(work: Work) -> float:
    work.move("running", why=f"attempt {work.state.attempt}")
    return 0


def _stop_here(work: Work) -> float:
    work.forget()
    work.move("stopped", why="its workers are prepared", release_at=release_at(work, "stopped"))
    return 0


def _give_up(work: Work, failure: Failure) -> float:
    work.failed(failure)
    work.unlearn(Preparation, Ender)
    return recover_or_fail(work, failure)


def _open(work: Work, worker: Worker) -> Story[tuple[str, str | None]]:
    home = yield from patiently(work, worker, lambda host: host.run('printf %s "$HOME"'))
    outputs = [str(output["dir"]) for output in reversed(work.state.outputs) if output.get("dir")]
    pattern = work.job.command.checkpoint
    if work.state.fresh or not outputs:
        return home.text, None if work.state.fresh else ""
    if pattern is None:
        return home.text, outputs[0]
    find = sh(_FIND_CHECKPOINT, directories=outputs, pattern=pattern).script
    found = yield from patiently(work, worker, lambda host: host.run(find))
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
