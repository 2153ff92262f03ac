"""The command as a worker starts it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

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
