"""Failures of an attempt, what plugins report about them, and the action that follows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from tpux.model.json import JsonValue, dump_fields

FailureKind = Literal[
    "preempted",
    "maintenance",
    "host-lost",
    "unreachable",
    "infra",
    "service",
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
ENDED_BY_TPUX = "ended by tpux"
"""Why a program ended that had to, because another worker failed, the attempt was over, or a user stopped the job."""


@dataclass(frozen=True)
class Failure:
    """What ended an attempt.

    Attributes:
        kind: one of `FAILURE_KINDS`; budgets and rules depend on it.
        worker: the index of the worker, None if it concerns all.
        evidence: the line that shows it, verbatim.
        hint: what the user can do.
        at: seconds since the epoch, None if unknown; of several root causes the earliest counts.
        symptom: it usually follows from the failure of another worker, as a closed connection does: it counts only
            where no worker has a cause of its own.
        code: the exit code of that worker's program; core fills it in.
        others: how many other workers failed as well; core fills it in.
        replacements: how often in a row the job may replace its machines for it, and never ones that tpux did not
            create; None if only the budget of the kind limits that. Since 0.1.
        slices: of a failure of the machines: the slices that were lost; all of them if empty; core fills it in.
    """

    kind: FailureKind
    worker: int | None = None
    evidence: str = ""
    hint: str = ""
    at: float | None = None
    symptom: bool = False
    code: int | None = None
    others: int = 0
    slices: tuple[int, ...] = ()
    replacements: int | None = None

    def to_json(self) -> dict[str, JsonValue]:
        """Return the fields as JSON data."""
        return dump_fields(self)


@dataclass(frozen=True)
class Finished:
    """A detector's verdict that the program completed its work. Counts if `command.finished_by` names the detector.

    Attributes:
        evidence: the line or the record that shows it.
        worker: the index of the worker, None if it concerns all.
        at: when, in seconds since the epoch: it does not count if another worker had failed before. None is the end of
            the worker's program.
    """

    evidence: str
    worker: int | None = None
    at: float | None = None


@dataclass(frozen=True)
class Finding:
    """A result of examining a job or a worker.

    Attributes:
        level: an `error` stops a job before anything is created; a `warning` and a `note` are shown; `ok` is shown by
            `tpux preflight` only.
        message: what was found.
        where: `file:line:column`, a worker, or a resource.
        hint: what to do about it.
    """

    level: Literal["error", "warning", "note", "ok"]
    message: str
    where: str = ""
    hint: str = ""


@dataclass(frozen=True)
class Action:
    """What follows a failure.

    Attributes:
        restart: `resume` continues from the last checkpoint, `rerun` starts from scratch, None fails the job.
        reapply: release the machines and request new ones first.
        solve: run the solvers on the workers first.
        tpu: with `reapply`: keys of the section `tpu` that override the config's for the next request of machines, such
            as another zone. The request after that has the config's again.
    """

    restart: Literal["resume", "rerun"] | None = None
    reapply: bool = False
    solve: bool = False
    tpu: Mapping[str, JsonValue] = field(default_factory=dict)

    def __str__(self) -> str:
        if self.restart is None:
            return "pass"
        first = "reapply, then " if self.reapply else "solve, " if self.solve else ""
        return first + self.restart
