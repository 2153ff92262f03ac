"""The command as a worker starts it, and how it ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tpux.machines import Machines
from tpux.steps import Step


@dataclass(frozen=True)
class Command:
    """A program to start on a worker.

    Attributes:
        argv: the program and its arguments. The user's script is a file there: `script` in argv's
            place is never a string between quotes.
        script: the path of the user's script on the worker, for an environment to wrap.
        env: variables to set; they travel in a file of mode 0600, never in an argument list.
        stop: steps that end it before its processes are looked for: a container outlives its client.
    """

    argv: tuple[str, ...]
    script: str
    env: Mapping[str, str] = field(default_factory=dict)
    stop: tuple[Step, ...] = ()


@dataclass(frozen=True)
class Ending:
    """How the command ended on one worker.

    Attributes:
        code: its exit code as a shell tells it, 128 + n where signal n ended it; None where it never
            said (the machine rebooted, or the process was killed together with its runner).
        log: the program's output, on this machine.
        at: seconds since the epoch when the end was seen.
    """

    worker: int
    code: int | None
    log: Path
    at: float
    reason: str = ""


@dataclass(frozen=True)
class Attempt:
    """One try at running the command, as `classify_failure` sees it once it has ended."""

    number: int
    endings: tuple[Ending, ...]
    machines: Machines
