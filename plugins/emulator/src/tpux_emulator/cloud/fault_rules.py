"""Standing faults: rules that requests and provisioning run into until they are used up."""

from __future__ import annotations

from enum import Enum
from fnmatch import fnmatchcase

from pydantic import BaseModel, ConfigDict, Field


class Effect(str, Enum):
    """What a rule does."""

    STOCKOUT = "stockout"  # creation ends in code 8; a queued resource waits
    QUOTA = "quota"  # creation is refused above a limit of chips
    FAIL = "fail"  # an operation, or a queued resource, ends in the rule's error
    ERROR = "error"  # the request is answered with the rule's HTTP status
    DROP = "drop"  # the connection is closed before anything was done
    LOSE = "lose"  # the request is done and its answer never sent
    HANG = "hang"  # the request is taken and never answered
    SLOW = "slow"  # the answer comes late


class FaultRule(BaseModel):
    """One standing fault. Everything left empty matches everything.

    Args:
        effect: what it does.
        zone: only in this zone.
        method: only for methods like this, as `nodes.create`, `queuedResources.*` (shell pattern).
        name: only for resources named like this (shell pattern on the last part of the name).
        generation: quota only: of which generation (`v4`).
        count: for so many requests.
        until: up to then, emulated Unix seconds.
        status: the HTTP status of an error.
        code: the google.rpc.Code of a failure.
        message: the sentence of the error.
        limit: quota only: chips that the project may have in the zone.
        seconds: how late an answer is, or how long a hang lasts (for ever when 0); emulated.
    """

    model_config = ConfigDict(extra="forbid")
    id: str = ""
    effect: Effect
    zone: str = ""
    method: str = "*"
    name: str = "*"
    generation: str = ""
    count: int | None = Field(default=None, ge=1)
    until: float | None = None
    status: int = 503
    code: int = 13
    message: str = ""
    limit: int = Field(default=0, ge=0)
    seconds: float = Field(default=0.0, ge=0)

    def matches(self, effect: Effect, *, zone: str, method: str, name: str, now: float) -> bool:
        """Whether the rule speaks about this."""
        return (
            self.effect is effect
            and self.zone in ("", zone)
            and fnmatchcase(method, self.method)
            and fnmatchcase(name, self.name)
            and (self.until is None or now < self.until)
        )
