"""Ending runs, and clearing up after them."""

from __future__ import annotations

from typing import Literal

from tpux.hosts import Host
from tpux.runs.asking import Values, ask, source
from tpux.runs.run import Run

Signal = Literal["TERM", "KILL", "0"]


def stop(host: Host, run: Run, *, signal: Signal, reason: str = "") -> int:
    """Send a signal to every process of a run; one that was not started yet will not be any more.

    Its processes are those that carry its id and the worker's home in their environment (`TPUX_RUN_ID`,
    `TPUX_RUN_HOME`), daemons too, those of other users where `sudo` asks for no password; and while its
    runner lives the program's whole session. SIGTERM is sent to a process once, however often this is
    called; SIGKILL each time. Zombies do not count.

    Args:
        host: the worker.
        run: the run; where its name ends in `*`, all that have begun and not ended. (What an ended step
            left behind, such as the daemon of a mount, is meant to stay.)
        signal: `TERM`, `KILL`, or `0`, which only counts them.
        reason: the word that `Status.reason` has for it from now on; the first one stays.

    Returns:
        How many are still alive after a moment; 0 says that it has ended.

    Raises:
        HostUnreachableError: the worker did not answer.
        TpuxError: it answered something else.
    """
    values: Values = {"signal": signal, "reason": " ".join(reason.split()), "hunt": source("hunt")}
    return int(ask(host, "stop", run.id, values)[0])


def unfinished(host: Host, job: str) -> list[Run]:
    """Those runs of a job (of its key) whose runner is alive, in no order.

    Raises:
        HostUnreachableError: the worker did not answer.
    """
    found = [name.split("/", 1) for name in ask(host, "unfinished", job, {})[0].split()]
    return [Run(job, int(attempt), name) for attempt, name in found]


def sweep(host: Host, job: str, before_attempt: int) -> int:
    """Delete the run directories of a job's earlier attempts, but for those that still run.

    Returns:
        How many still run.

    Raises:
        HostUnreachableError: the worker did not answer.
    """
    return int(ask(host, "sweep", job, {"below": before_attempt})[0])


def remove(host: Host, job: str) -> int:
    """Delete all run directories of a job, but for those that still run; how many those are."""
    return sweep(host, job, 2**31 - 1)
