"""All runs of a job on a worker: which are unfinished, their removal, and the claim of the machine they are on."""

from __future__ import annotations

from tpux.plugin.host import Host
from tpux.remote.process import RemoteProcess
from tpux.remote.script import Values, call_script


def unfinished(host: Host, job: str) -> list[RemoteProcess]:
    """Return the runs of a job (of its `worker_key`) whose runner is alive, in no particular order.

    Raises:
        HostUnreachableError: the worker did not answer.
    """
    found = [name.split("/", 1) for name in call_script(host, "unfinished", job, {})[0].split()]
    return [RemoteProcess(job, int(attempt), name) for attempt, name in found]


def remove_old(host: Host, job: str, before_attempt: int) -> int:
    """Delete the run directories of a job's earlier attempts, except those that are still running.

    Returns:
        How many are still running.

    Raises:
        HostUnreachableError: the worker did not answer.
    """
    return int(call_script(host, "remove_old", job, {"before": before_attempt})[0])


def claim_machine(host: Host, job: str, round_: int) -> int:
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


def remove(host: Host, job: str) -> int:
    """Delete all run directories of a job, except those that are still running; return how many those are."""
    return remove_old(host, job, 2**31 - 1)
