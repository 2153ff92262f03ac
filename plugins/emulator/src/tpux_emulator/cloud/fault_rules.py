"""Fault rules: faults that apply to every matching request or creation until they are used up or cleared."""

from __future__ import annotations

from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class Effect(StrEnum):
    """What a rule does."""

    STOCKOUT = "stockout"  # the creation of a node fails; a queued resource waits
    QUOTA = "quota"  # creations above a number of chips are rejected
    FORBID = "forbid"  # every request in the zone is answered with 403
    FAIL = "fail"  # an operation, or a queued resource, fails with the rule's error
    ERROR = "error"  # the answer is the rule's HTTP status
    DROP = "drop"  # the connection is closed before the request is handled
    LATE = "late"  # the connection is closed without an answer; the request is handled after the rule's delay
    LOSE = "lose"  # the request is handled, but the connection is closed instead of an answer
    HANG = "hang"  # the request is accepted and not answered
    SLOW = "slow"  # the answer is delayed
    UNREACHABLE = "unreachable"  # lists leave the zone's resources out, and say so


class FaultRule(BaseModel):
    """A fault rule. An empty condition matches everything.

    Args:
        id: assigned when the rule is added.
        effect: what it does.
        zone: the zone, or the region, that it applies to.
        method: the methods that it applies to, such as `nodes.create` or `queuedResources.*` (shell pattern).
        name: the resources that it applies to (shell pattern for the last part of the name).
        generation: for a quota, the TPU generation, such as `v4`.
        count: after this many uses the rule is removed; None means never.
        until: emulated Unix seconds from which it no longer applies.
        status: for an error, the HTTP status.
        code: for a failure, the google.rpc.Code.
        message: the error's message; empty for Google's.
        limit: for a quota, the number of chips that a project may have in the region, or in the zone (see `form`).
        pricing: for a quota, `spot` or `ondemand`.
        form: the wording: for a stockout `zone`, `resources` (Compute Engine's 429) or `pool` (its 503); for a quota
            `zone`, `region`, or `exhausted` (a queued resource is accepted, then fails); for a forbidden zone `zone`
            or `policy` (LOCATION_POLICY_VIOLATED).
        seconds: for a slow answer or a late request its delay, for a hang its length (0: no limit), in emulated
            seconds.
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
    pricing: Literal["", "spot", "ondemand"] = ""
    form: Literal["zone", "resources", "pool", "region", "exhausted", "policy"] = "zone"
    seconds: float = Field(default=0.0, ge=0)

    def matches(self, effect: Effect, *, zone: str, method: str, name: str, now: float) -> bool:
        """Return True if the rule has this effect and applies to this zone, method and resource now."""
        return (
            self.effect is effect
            and self.zone in ("", zone, zone.rpartition("-")[0])
            and fnmatchcase(method, self.method)
            and fnmatchcase(name, self.name)
            and (self.until is None or now < self.until)
        )
