"""What can end an attempt, what plugins say about it, and what is done next."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal, get_args

FailureKind = Literal[
    "preempted",
    "maintenance",
    "host-lost",
    "unreachable",
    "infra",
    "tpu-busy",
    "out-of-memory",
    "stockout",
    "quota",
    "auth",
    "config",
    "setup",
    "stalled",
    "incomplete",
    "plugin",
    "program",
    "unknown",
]
FAILURE_KINDS: tuple[FailureKind, ...] = get_args(FailureKind)


@dataclass(frozen=True)
class Failure:
    """What ended an attempt.

    Attributes:
        kind: one of `FAILURE_KINDS`; budgets and rules depend on it.
        worker: where it was seen, None where it concerns all.
        evidence: the line that says so, word for word.
        hint: what the user can do.
        at: seconds since the epoch, where known: among several root causes the earliest counts.
    """

    kind: FailureKind
    worker: int | None = None
    evidence: str = ""
    hint: str = ""
    at: float | None = None

    def to_json(self) -> dict[str, str | int | float | None]:
        """The same as JSON knows it."""
        return asdict(self)


@dataclass(frozen=True)
class Finished:
    """A detector's word that the program did all that it was meant to, whatever it exited with."""

    evidence: str


@dataclass(frozen=True)
class Finding:
    """What a look at a job or a worker brought up.

    Attributes:
        level: an `error` stops a job before anything is created; a `warning` is shown.
        message: what was found.
        where: `file:line:column`, a worker, a resource.
        hint: the cure.
    """

    level: Literal["error", "warning", "ok"]
    message: str
    where: str = ""
    hint: str = ""


@dataclass(frozen=True)
class Action:
    """What follows a failure.

    Attributes:
        restart: `resume` goes on from the last checkpoint, `rerun` starts from scratch, None lets
            the job fail.
        reapply: give the machines back and ask for new ones first.
        solve: let the solvers at the workers first.
    """

    restart: Literal["resume", "rerun"] | None = None
    reapply: bool = False
    solve: bool = False

    def __str__(self) -> str:
        if self.restart is None:
            return "pass"
        first = "reapply, then " if self.reapply else "solve, " if self.solve else ""
        return first + self.restart
