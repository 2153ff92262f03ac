"""What the keys of the monitor do to a job: tpux's own commands, in a process of their own."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from tpux.api import JobInfo
from tpux.api.text import printable

NAMED = 8
"""How many of several jobs a question names."""
TIMEOUT = 120.0
"""Seconds after which a command is left alone: what it has requested takes place without it."""


@dataclass(frozen=True)
class Action:
    """A command on jobs.

    Attributes:
        word: of `tpux`.
        options: so that it neither asks nor waits longer than it must.
        effect: what it does, for the question.
    """

    word: str
    options: tuple[str, ...] = ()
    effect: str = ""

    def command(self, jobs: Sequence[JobInfo]) -> list[str]:
        """Return the words of the command."""
        return [self.word, *self.options, *(str(int(job.id)) for job in jobs)]

    def question(self, jobs: Sequence[JobInfo]) -> str:
        """Return what is asked before, which names each job, its state and its machines."""
        named = [f"job {int(job.id)} ({job.name}), {job.state}{_held(job)}" for job in jobs]
        return f"{self.word} {named[0]}? {self.effect}" if len(jobs) == 1 else self._list(named)

    def _list(self, named: list[str]) -> str:
        more = [f"... and {len(named) - NAMED} more"] if len(named) > NAMED else []
        return "\n  ".join([f"{self.word} {len(named)} jobs?", *named[:NAMED], *more]) + f"\n{self.effect}"

    def typed(self, jobs: Sequence[JobInfo]) -> str:
        """Return what a user would type for it."""
        return shlex.join(["tpux", self.word, *(str(int(job.id)) for job in jobs)])


def _held(job: JobInfo) -> str:
    return f", which holds {job.machines}" if job.machines else ""


ACTIONS = {
    "s": Action("stop", ("--no-wait",), "The program is ended."),
    "r": Action("resume", (), "It continues from its last checkpoint."),
    "R": Action("rerun", (), "It starts from scratch."),
    "d": Action("delete", ("-y",), "The program is ended, the machines are released, all logs are removed."),
}
"""By key."""


def run(action: Action, jobs: Sequence[JobInfo]) -> str:
    """Carry an action out; return the last line that the command printed."""
    try:
        done = _tpux(*action.command(jobs))
    except subprocess.TimeoutExpired:
        return f"{action.typed(jobs)} has not ended after {TIMEOUT:.0f} s; what it requested takes place without it"
    said = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    return said[-1] if said else f"{action.typed(jobs)}: exit code {done.returncode}"


def describe(job: JobInfo, width: int) -> list[str]:
    """Return the lines of `tpux show` and `tpux config show` of a job, for a terminal of a width."""
    number, lines = str(int(job.id)), list[str]()
    for words in (["show", number], ["config", "show", number]):
        try:
            done = _tpux(*words, COLUMNS=str(width))
            lines += [f"$ tpux {' '.join(words)}", *(done.stdout or done.stderr).splitlines(), ""]
        except subprocess.TimeoutExpired:
            lines.append(f"tpux {' '.join(words)} has not ended after {TIMEOUT:.0f} s")
    return [printable(line) for line in lines]


def _tpux(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-m", "tpux", *words],
        check=False,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=TIMEOUT,
        env={**os.environ, **variables},
    )
