"""Which workers run the command of an attempt, and where."""

from __future__ import annotations

from collections.abc import Iterable

from tpux.errors import TpuxError
from tpux.lifecycle.turn import Turn
from tpux.model.machines import Worker
from tpux.remote import process
from tpux.remote.output import Program
from tpux.remote.process import RemoteProcess

COMMAND = "command"
"""The name of the command's run in each attempt."""


def command_process(turn: Turn, worker: int) -> RemoteProcess:
    """Return where the command of the current attempt runs on a worker."""
    return RemoteProcess(process.worker_key(turn.job.key, worker), turn.state.attempt, COMMAND)


def command_workers(turn: Turn) -> list[Worker]:
    """Return the workers that are to run the command.

    Raises:
        TpuxError: `command.workers` names a worker that the machines do not have.
    """
    workers = turn.machines.workers
    wanted = turn.job.command.workers
    numbers = list(range(len(workers))) if wanted == "all" else [wanted] if isinstance(wanted, int) else wanted
    if missing := [number for number in numbers if number >= len(workers)]:
        raise TpuxError(f"there is no worker {missing[0]}: the machines have {len(workers)}")
    return [workers[number] for number in numbers]


def workers(turn: Turn, *, without: Iterable[int] = ()) -> dict[int, Worker]:
    """Return the workers that run the command in the current attempt, except those in `without`."""
    skipped = set(without)
    every = turn.machines.workers
    return {index: every[index] for index in turn.state.run.workers if index not in skipped}


def open_workers(turn: Turn, *, without: Iterable[int] = ()) -> dict[int, Worker]:
    """Return those of them on which the command has not ended."""
    return workers(turn, without=[*turn.state.endings, *without])


def programs(turn: Turn, *, without: Iterable[int] = ()) -> dict[int, Program]:
    """Return the command of the current attempt on each of its workers, except those in `without`."""
    attempt = turn.state.attempt
    return {
        index: Program(worker, command_process(turn, index), turn.record.output_log(attempt, index))
        for index, worker in workers(turn, without=without).items()
    }


def open_programs(turn: Turn, *, without: Iterable[int] = ()) -> dict[int, Program]:
    """Return those of them that have not ended."""
    return programs(turn, without=[*turn.state.endings, *without])
