"""What the page does to a job: tpux's own commands, in a process of their own, as a user would type them."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass

from tpux.api import JobInfo

TIMEOUT = 120.0
"""Seconds after which a command is left alone: what it has requested takes place without it."""


@dataclass(frozen=True)
class Action:
    """A command on a job.

    Attributes:
        word: of `tpux`.
        options: so that it neither asks nor waits longer than it must.
        effect: what it does, for the question.
        previews: whether it has `--dry-run`, whose output is the command's own question.
    """

    word: str
    options: tuple[str, ...]
    effect: str
    previews: bool = False


ACTIONS = {
    action.word: action
    for action in (
        Action("stop", ("--no-wait",), "The program is ended; the machines are kept for tpu.keep_on_stop.", True),
        Action("resume", (), "It continues from its last checkpoint."),
        Action("rerun", (), "It starts from scratch."),
        Action("delete", ("-y",), "The program is ended, the machines are released, all logs are removed.", True),
    )
}
"""By word."""


def question(action: Action, job: JobInfo) -> str:
    """Return what is asked before, which names the job, its state and its machines."""
    machines = f", which holds {job.machines}" if job.machines else ""
    asked = f"{action.word} job {int(job.id)} ({job.name}), {job.state}{machines}? {action.effect}"
    return f"{asked}\n{_run(action.word, '--dry-run', job.id)[1]}" if action.previews else asked


def run(action: Action, job: JobInfo) -> tuple[bool, str]:
    """Carry an action out.

    Returns:
        Whether it was accepted, and what the command has printed.
    """
    return _run(action.word, *action.options, job.id)


def _run(word: str, *rest: str) -> tuple[bool, str]:
    *options, job = rest
    command = [sys.executable, "-P", "-m", "tpux", word, *options, str(int(job))]
    try:
        done = subprocess.run(
            command,
            check=False,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT,
        )
    except subprocess.TimeoutExpired:
        return False, f"tpux {word} has not ended after {TIMEOUT:.0f} s; what it requested takes place without it"
    said = (done.stdout + done.stderr).strip()
    return done.returncode == 0, said or f"tpux {word}: exit code {done.returncode}"
