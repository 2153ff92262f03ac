"""All runs of a job on a worker: which are unfinished, their removal, and the claim of the machine they are on."""

from __future__ import annotations

from dataclasses import dataclass

from tpux.model.host import OpenHost
from tpux.remote.process import RemoteProcess
from tpux.remote.script import Values, call_script

DIAGNOSIS = "diagnose-"
"""What the names of the runs of `tpux diagnose` begin with, here and in the solver of `libtpu`."""


def unfinished(host: OpenHost, job: str) -> list[RemoteProcess]:
    """Return the runs of a job (of its `worker_key`) whose runner is alive, in no particular order.

    Raises:
        HostUnreachableError: the worker did not answer.
    """
    found = [name.split("/", 1) for name in call_script(host, "unfinished", job, {})[0].split()]
    return [RemoteProcess(job, int(attempt), name) for attempt, name in found]


@dataclass(frozen=True)
class Prepared:
    """A worker before an attempt.

    Attributes:
        running: how many runs of earlier attempts are still running.
        home: the home directory.
        problem: why the directory could not be created, "" if it could.
    """

    running: int
    home: str
    problem: str


def prepare(host: OpenHost, job: str, attempt: int, directory: str = "") -> Prepared:
    """Delete the run directories of attempts before this one, except those that are still running; create a directory.

    Args:
        host: the worker.
        job: the job's key.
        attempt: the attempt.
        directory: the directory, relative to the home directory; "" for none.

    Raises:
        HostUnreachableError: the worker did not answer.
        TpuxError: the script failed.
    """
    values: Values = {"before": attempt, "directory": directory}
    running, rest = call_script(host, "prepare", job, values)
    home, _, problem = rest.decode(errors="surrogateescape").partition("\n")
    return Prepared(int(running), home, problem.strip())


def reserve_machine(host: OpenHost, job: str, round_: int) -> int:
    """Claim a machine for a worker, so that one machine under two addresses is noticed. Safe to repeat.

    The claim is a file in a directory that no other machine has: `$TPUX_MACHINE_DIR`, which a transport sets whose
    workers share a machine on purpose, else `/run`, else `/tmp`.

    Args:
        host: the worker.
        job: the job's key.
        round_: the round of set-up; claims of earlier ones do not count.

    Returns:
        The number of the worker that has the machine.

    Raises:
        HostUnreachableError: the worker did not answer.
        TpuxError: the script failed.
    """
    values: Values = {"round": round_, "worker": host.worker.index}
    return int(call_script(host, "claim", job, values, wait=30.0)[0])


def remove(host: OpenHost, job: str) -> int:
    """Delete all run directories of a job, except those that are still running; return how many those are."""
    return prepare(host, job, 2**31 - 1).running
