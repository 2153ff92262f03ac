"""What is remembered between two steps of a request; core writes it down before the next step is taken."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Literal, cast

from tpux import JsonValue
from tpux_gcp.spec import Candidate
from tpux_gcp.views import Place

Phase = Literal["asking", "giving-up", "resting"]
TRIED = 20
"""How many combinations that were tried are remembered."""


@dataclass(frozen=True)
class Memo:
    """Where a request stands. Times are `clock.now()`.

    Attributes:
        project, endpoint: where it is made, whatever the environment of a later supervisor says.
        at: the number of the combination at hand; `zone` and `accelerator` are what that was.
        since: when its turn began.
        phase: `asking` for it, `giving-up` what was asked for, or `resting` until `rest_until`.
        request_id: of the creation that is about to be, or was, sent.
        operation: what the cloud answered to it; empty where no answer came.
        after: what follows once what was asked for is gone: the `next` combination, or the same one `again`.
        round: how often all combinations were tried; `again`: how often the one at hand was lost.
        tried: what became of the combinations so far, as a user reads it.
        seen, seen_at: the last state, and when it was first seen.
        problems: how many steps in a row the API did not answer.
        borrowed: tpux did not make the machine.
        patch: the operation that puts our keys into its metadata.
        absent: since when it has been absent though its creation was sent.
        renew: what had the name was on its way out: once it is gone, a creation is a new one.
    """

    project: str
    endpoint: str = ""
    zone: str = ""
    accelerator: str = ""
    at: int = 0
    since: float = 0.0
    phase: Phase = "asking"
    request_id: str = ""
    operation: str = ""
    after: Literal["next", "again"] = "next"
    round: int = 0
    again: int = 0
    tried: tuple[str, ...] = ()
    rest_until: float = 0.0
    seen: str = ""
    seen_at: float = 0.0
    problems: int = 0
    borrowed: bool = False
    patch: str = ""
    absent: float = 0.0
    renew: bool = False

    @property
    def candidate(self) -> Candidate:
        """The combination at hand."""
        return Candidate(self.accelerator, self.zone)

    @property
    def place(self) -> Place:
        """Where that is."""
        return Place(self.project, self.zone)

    def turn(self, number: int, candidate: Candidate, now: float) -> Memo:
        """The memo with which the turn of a combination begins."""
        return replace(
            self, at=number, zone=candidate.zone, accelerator=candidate.accelerator, since=now, phase="asking",
            request_id=str(uuid.uuid4()), operation="", patch="", seen="", seen_at=now, problems=0, borrowed=False,
            absent=0.0, renew=False,
        )  # fmt: skip

    def note(self, why: str) -> Memo:
        """The memo with what became of the combination at hand."""
        return replace(self, tried=(*self.tried, f"{self.candidate}: {why}")[-TRIED:])

    def to_json(self) -> dict[str, JsonValue]:
        """The same as JSON knows it."""
        return cast("dict[str, JsonValue]", {**asdict(self), "tried": list(self.tried)})

    @classmethod
    def read(cls, data: Mapping[str, JsonValue]) -> Memo | None:
        """The memo that `to_json` wrote; None where nothing was begun."""
        if not data.get("project"):
            return None
        known = {field.name for field in fields(cls)}
        given = {key: value for key, value in data.items() if key in known}
        given["tried"] = tuple(cast("list[str]", given.get("tried") or []))  # type: ignore[assignment]
        return cls(**given)  # type: ignore[arg-type]
