"""What a program lacked: a command that is in `~/.local/bin`, or an input that nobody gives it."""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping

from tpux import Attempt, Failure, Job, JsonValue, Result, Step, Worker, WorkerExit, hookimpl, sh

NOT_FOUND = 127
"""The exit code of a shell whose last command does not exist."""
_MISSING = re.compile(
    r"(?:^|[ '\u2018])([\w.+-]+)['\u2019]?: (?:command not found|not found|No such file or directory)$"
)
_READ = re.compile(r"(?:^|[;&({]|\b(?:then|do|else)\b)\s*read\b[^|<]*(?:[;&|\n]|$)", re.MULTILINE)
"""A `read` of bash that neither a pipe nor a file precedes."""
_INPUT = "the standard input of a program is empty: give it what it reads as an argument, a variable or a file"


@hookimpl
def collect(attempt: Attempt, worker: Worker) -> Generator[Step, Result, Mapping[str, JsonValue] | None] | None:
    """Look for a command that was not found where `pip install --user` puts it."""
    for ending in attempt.endings:
        if ending.worker == worker.index and ending.code == NOT_FOUND and (name := _missing(ending)):
            return _look(name)
    return None


def _look(name: str) -> Generator[Step, Result, Mapping[str, JsonValue] | None]:
    found = yield sh('if [ -x "$HOME"/.local/bin/{name} ]; then echo found; fi', name=name)
    return {"in ~/.local/bin": name} if found.text == "found" else None


@hookimpl
def classify_failure(job: Job, attempt: Attempt) -> list[Failure]:
    """Return what is known of programs that lacked a command or an input."""
    found = []
    for ending in attempt.endings:
        seen = attempt.collected.get(ending.worker, {}).get("doctor", {})
        if ending.failed and ending.code is not None and (hint := _hint(job, ending, seen)):
            evidence = ": ".join(filter(None, [f"exit code {ending.code}", ending.statement()]))
            hint = f"{hint}; tpux logs {int(job.id or 0)} --worker {ending.worker}"
            found.append(Failure("program", ending.worker, evidence, hint))
    return found


def _hint(job: Job, ending: WorkerExit, seen: Mapping[str, JsonValue]) -> str:
    if name := seen.get("in ~/.local/bin"):
        return f"{name} is in ~/.local/bin, which is not in the program's PATH: export PATH=~/.local/bin:$PATH"
    silent_read = ending.code == 1 and not ending.statement() and _READ.search(job.command.cmd)
    return _INPUT if silent_read or ending.exception().startswith("EOFError: EOF when reading a line") else ""


def _missing(ending: WorkerExit) -> str:
    return match[1] if (match := _MISSING.search(ending.statement())) else ""
