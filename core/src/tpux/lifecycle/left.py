"""Processes that run on after the command has exited with 0, as of `nohup python train.py &` or `tmux new -d`.

The command may have put the program itself into the background: then the attempt has not succeeded, and what runs must
not be ended with it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import PurePosixPath

from tpux.durations import format_duration
from tpux.errors import TpuxError
from tpux.lifecycle import loss
from tpux.lifecycle.endings import exited_with_0, runs_on
from tpux.lifecycle.programs import programs
from tpux.lifecycle.turn import Turn
from tpux.model.events import AttemptTerminating
from tpux.model.failures import Failure
from tpux.remote import process
from tpux.remote.calls import WorkerCalls
from tpux.remote.output import Program

CHECK_EVERY = 2.0
"""Seconds between two looks at what runs on; from the end of the grace period on, ten times as long."""
HELPERS = ("wandb-core", "wandb-service", "wandb-xpu", "gpu_stats", "tensorboard", "resource_tracker", "forkserver")
"""Programs that often outlive the one that has started them, and do no work of it."""
_MODULE = re.compile(r"(?:from|import) [\w.]*?(\w+)\b")


def may_have_left(turn: Turn, failure: Failure | None) -> bool:
    """Return whether the command has exited with 0 on all workers by itself, and what is left was not ended yet."""
    if turn.termination.begun or turn.state.run.notice or not exited_with_0(turn):
        return False
    untouched = not any(ending.signal or ending.reason for ending in turn.state.endings.values())
    return untouched and (failure is None or runs_on(turn))


@dataclass
class LeftProcesses:
    """Looks at what runs on after all workers have exited with 0."""

    _since: float | None = None
    _next_at: float = 0.0

    def check(self, turn: Turn, *, finished: Callable[[], bool]) -> float | None:
        """Look, and write that the attempt is incomplete once something has run on for `watch.straggler_grace`.

        Args:
            turn: the step, of an attempt in which all workers have exited with 0.
            finished: returns whether a detector that the job trusts reports that the program has finished; asked only
                if something runs on.

        Returns:
            Seconds until the next call; None when nothing is left that matters, or `command.left_timeout` is over.
        """
        now = turn.clock.monotonic()
        if now < self._next_at:
            return self._next_at - now
        self._since = now if self._since is None else self._since
        matter, helpers, unknown = self._look(turn)
        if unknown and not loss.overdue_workers(turn):
            turn.waiting(loss.unreachable_report(turn) or "the command has exited with 0; looking for what runs on")
            self._next_at = now + CHECK_EVERY
            return CHECK_EVERY
        if not matter or finished():
            if matter or helpers:
                turn.log(f"{_describe([*matter, *helpers])} after the end of the program; it is ended")
            return None
        left, failure = _describe(matter), turn.state.run.failure
        if failure is None and now - self._since < turn.job.watch.straggler_grace:
            turn.waiting(f"the command has exited with 0, but {left}")
            self._next_at = now + CHECK_EVERY
            return CHECK_EVERY
        if failure is None:
            hint = f"start the program in the foreground; what it wrote: tpux logs {turn.number}"
            evidence = f"exit code 0 on all workers, but {left}"
            failure = Failure("incomplete", evidence=evidence, hint=hint, at=turn.clock.now())
            turn.write(AttemptTerminating(attempt=turn.state.attempt, failure=failure))
        if (held := turn.clock.now() - (failure.at or 0.0)) > turn.job.command.left_timeout:
            return None
        limit = format_duration(turn.job.command.left_timeout)
        turn.waiting(
            f"the command has exited with 0, but {left}: the machines are held until that ends, {limit} at most",
            hint=f"end it: tpux stop {turn.number}",
        )
        delay = min(10 * CHECK_EVERY, max(turn.job.command.left_timeout - held, 0.0) + 0.1)
        self._next_at = now + delay
        return delay

    def _look(self, turn: Turn) -> tuple[list[str], list[str], bool]:
        """Return the commands that run on, those of helpers, and whether a worker did not answer."""
        calls: WorkerCalls[list[list[str]]] = turn.workers.calls("a look at what runs on")
        answers = calls.make_all(programs(turn), lambda _, program: _left_of(turn, program))
        allowed = {*HELPERS, *turn.job.command.allow_left}
        matter, helpers, unknown = list[str](), list[str](), False
        for index, answer in answers.items():
            worker = turn.machines.workers[index]
            if isinstance(answer, TpuxError):
                unknown = True
                turn.workers.mark_unreachable(worker, answer, CHECK_EVERY)
                continue
            turn.workers.mark_reachable(worker)
            for argv in answer:
                (helpers if names(argv) & allowed else matter).append(" ".join(argv)[:60])
        return matter, helpers, unknown


def _left_of(turn: Turn, program: Program) -> list[list[str]]:
    return process.left(turn.workers.host(program.worker), program.run)


def names(argv: Sequence[str]) -> set[str]:
    """Return by which names a process may be allowed: its program's, its script's, and of a module that it imports."""
    found = {re.sub(r"\(.*", "", PurePosixPath(word).name) for word in argv[:2]}
    for option, value in pairwise(argv):
        if option == "-c" and (module := _MODULE.match(value)):
            found.add(module[1])
        elif option == "-m":
            found.add(value.rpartition(".")[2])
    return found


def _describe(commands: Sequence[str]) -> str:
    count = len(commands)
    return f"left {count} process{'es' * (count > 1)} ({', '.join(dict.fromkeys(commands[:3]))})"
