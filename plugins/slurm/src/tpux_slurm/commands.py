"""Slurm's commands, in the environment of the shell that created the job."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tpux import JsonValue, TpuxError

VARIABLES = (
    "PATH",
    "MUNGE_SOCKET",
    *(f"SLURM_{name}" for name in ("CONF", "CONF_SERVER")),
    *(f"SBATCH_{name}" for name in ("ACCOUNT", "PARTITION", "QOS", "TIMELIMIT", "RESERVATION")),
)
"""What the commands need of the shell. Not the others: a job that is created within a Slurm job is not a part of it.
And not the clusters: sbatch would submit to another one, where the other commands do not look."""
TIMEOUT = 30.0
"""Seconds that a command may take."""
_MAY_BE_SENT = (
    *("timed out", "zero bytes", "communicat", "send failure", "receive failure", "shutdown failure"),
    *("not connected", "reset by peer", "broken pipe", "missing socket"),
)
"""What the commands say of a connection that was lost, in lower case (slurm_errno.c, and strerror of the system)."""
_UNREACHABLE = (*_MAY_BE_SENT, "unable to contact", "connect failure", "connection refused")
_MUNGE = ("munge", "authentication", "auth_g_")


@dataclass(frozen=True)
class Answer:
    """What a command printed, and its exit code."""

    code: int
    output: str
    error: str


class SlurmError(TpuxError):
    """A command has failed; whether Slurm has done what it says is unknown, unless it was not sent.

    Attributes:
        sent: whether Slurm may have got it.
    """

    def __init__(self, message: str, *, hint: str = "", sent: bool = True) -> None:
        super().__init__(message, hint=hint)
        self.sent = sent


def environment(resolved: Mapping[str, JsonValue]) -> dict[str, str]:
    """Return the environment of Slurm's commands, from what `resolve` has stored."""
    stored = {name: str(resolved[name]) for name in VARIABLES if name in resolved}
    return {"PATH": os.defpath, **stored, "LC_ALL": "C.UTF-8", "SLURM_TIME_FORMAT": "standard"}


def run(
    resolved: Mapping[str, JsonValue], argv: Sequence[str], stdin: str = "", *, inherit: Sequence[int] = ()
) -> Answer:
    """Run a command of Slurm.

    Args:
        resolved: what `resolve` has stored.
        argv: the command.
        stdin: its input.
        inherit: descriptors that it keeps open until it ends.

    Raises:
        SlurmError: the command is not there, or Slurm does not answer.
    """
    variables = environment(resolved)
    if (program := shutil.which(argv[0], path=variables["PATH"])) is None:
        hint = "create the job in a shell in which sinfo works, on a login node of the cluster"
        raise SlurmError(f"{argv[0]} is not in PATH ({variables['PATH']})", hint=hint, sent=False)
    try:
        done = subprocess.run(
            [program, *argv[1:]],
            input=stdin,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT,
            check=False,
            env=variables,
            pass_fds=inherit,
        )
    except subprocess.TimeoutExpired:
        raise SlurmError(f"{argv[0]}: Slurm has not answered within {TIMEOUT:.0f} s") from None
    answer = Answer(done.returncode, done.stdout.strip(), _plain(done.stderr))
    if answer.code and any(text in answer.error.lower() for text in _MUNGE):
        hint = "munged must run on this machine with the cluster's key: ask the administrators"
        raise SlurmError(f"{argv[0]}: {answer.error}", hint=hint, sent=False)
    if answer.code and any(text in answer.error.lower() for text in _UNREACHABLE):
        sent = any(text in answer.error.lower() for text in _MAY_BE_SENT)
        raise SlurmError(f"{argv[0]}: Slurm does not answer: {answer.error}", sent=sent)
    if answer.code < 0:
        raise SlurmError(f"{argv[0]}: ended by signal {-answer.code}")
    return answer


def checked(resolved: Mapping[str, JsonValue], argv: Sequence[str]) -> str:
    """Run a command, and return what it printed.

    Raises:
        SlurmError: it has failed.
    """
    answer = run(resolved, argv)
    if answer.code:
        raise SlurmError(f"{argv[0]}: {answer.error or f'exit code {answer.code}'}")
    return answer.output


def _plain(text: str) -> str:
    """Return the lines of stderr in one."""
    return "; ".join(line.strip() for line in text.splitlines() if line.strip())[-500:]
