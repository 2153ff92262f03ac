"""What a run is, and what is known of one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Phase = Literal["absent", "running", "ended", "lost"]

_PART = re.compile(r"[^/\s\0*?\[\\]+")


@dataclass(frozen=True)
class Run:
    """Where a run lives and what marks its processes.

    Attributes:
        job: the job's key, `<store>-<user>-<job>`.
        attempt: the attempt that it belongs to.
        name: unique within the attempt; `command` for the command. One that ends in `*` stands, for
            `stop` alone, for all runs of the attempt whose names begin so.
    """

    job: str
    attempt: int
    name: str

    def __post_init__(self) -> None:
        for part in (self.job, self.name.removesuffix("*")):
            if not _PART.fullmatch(part) or part in {".", ".."}:
                raise ValueError(f"a run cannot be called {part!r}")

    @property
    def id(self) -> str:
        """The value of `TPUX_RUN_ID` in the environment of its processes."""
        return f"{self.job}/{self.attempt}/{self.name}"

    @property
    def directory(self) -> str:
        """Its directory, from the worker's home."""
        return f".tpux/runs/{self.id}"

    @property
    def script(self) -> str:
        """The script's path, from the worker's home."""
        return f"{self.directory}/script"

    @property
    def output(self) -> str:
        """The path of its output, from the worker's home."""
        return f"{self.directory}/output"

    @property
    def exit(self) -> str:
        """The path of its exit code, from the worker's home."""
        return f"{self.directory}/exit"


@dataclass(frozen=True)
class Status:
    """What a look at a run brought up.

    Attributes:
        phase: `absent` never started, `running`, `ended` with a code, `lost` started once, without an
            exit code, and nobody holds its lock.
        code: the exit code as a shell tells it: 128 + n where signal n ended the program.
        output: what it wrote, from the offset that was asked for.
        more: a full piece came: read on at once.
        reason: why a run was lost, or was stopped (`stop`'s word).
        age: seconds since it started, by the worker's clock; 0 where `poll` answers.
    """

    phase: Phase
    code: int | None = None
    output: bytes = b""
    more: bool = False
    reason: str = ""
    age: float = 0.0
