"""One step of a request: what is asked, what is remembered, and whom to ask."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from typing import Literal, cast

from tpux import Denied, Failure, FailureKind, JsonValue, Ready, Request, TpuSection, Waiting, clock_rate
from tpux_gcp import project as where
from tpux_gcp import validation
from tpux_gcp.api import Api, look
from tpux_gcp.errors import Problem
from tpux_gcp.resource import Place, Thing
from tpux_gcp.spec import Candidate, candidates

Answer = Ready | Waiting | Denied
Phase = Literal["asking", "giving-up", "resting"]
TRIED = 20
"""How many combinations that were tried are remembered."""
_FIRST, _MOST = 5.0, 120.0
_MINUTE = 60.0


def now() -> float:
    """Seconds that only differences are taken of: as fast as tpux' clock, and steady over a supervisor's restart."""
    return time.time() * clock_rate()


@dataclass(frozen=True)
class Memo:
    """Where a request stands. Times are `now()`.

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

    @classmethod
    def begin(cls, project: str, endpoint: str, candidate: Candidate) -> Memo:
        """The memo of a request that begins."""
        return cls(project=project, endpoint=endpoint).turn(0, candidate, now())

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


@dataclass(frozen=True)
class Errand:
    """A request at one of its steps.

    Attributes:
        queue: whether it is served by a queued resource.
        now: the time of the step (`now`).
    """

    request: Request
    memo: Memo
    queue: bool
    now: float

    @classmethod
    def of(cls, request: Request, *, queue: bool) -> Errand | None:
        """The request as it stands; None where nothing was begun.

        Several slices are always had by a queued resource: the API knows no other way.

        Raises:
            RefusedError: `tpu.flags` cannot be understood.
        """
        memo = Memo.read(request.memo)
        request = validation.in_request(request)
        return None if memo is None else cls(request, memo, queue or request.tpu.node_count > 1, now())

    @property
    def tpu(self) -> TpuSection:
        """The config's `tpu` section, with what its flags say."""
        return self.request.tpu

    @cached_property
    def api(self) -> Api:
        """Whom to ask."""
        return Api(self.memo.project, where.endpoint(self.tpu.endpoint, self.memo.endpoint))

    @cached_property
    def name(self) -> str:
        """What the TPU is called.

        Raises:
            RefusedError: the API does not take the name.
        """
        return validation.node_id(self.request)

    @property
    def machine(self) -> str:
        """The name under which it is claimed: the same for everybody who could mean it."""
        return f"{self.memo.place.parent}/{self.name}"

    @cached_property
    def combinations(self) -> list[Candidate]:
        """What may be asked for.

        Raises:
            RefusedError: nothing.
        """
        return candidates(self.tpu)

    def look(self) -> Thing | None:
        """What there is under its name.

        Raises:
            CloudError: it could not be seen.
        """
        return look(self.api, self.memo.place, self.name, queue=self.queue)

    def remember(self, **change: object) -> Errand:
        """The errand with a changed memo."""
        return replace(self, memo=replace(self.memo, **change))  # type: ignore[arg-type]

    def with_memo(self, memo: Memo) -> Errand:
        """The errand with another memo."""
        return replace(self, memo=memo)

    def saw(self, state: str) -> Errand:
        """The errand after a look that succeeded: when a state was first seen is remembered."""
        if state == self.memo.seen:
            return self.remember(problems=0) if self.memo.problems else self
        return self.remember(problems=0, seen=state, seen_at=self.now)

    def wait(self, why: str, look_again_after: float) -> Waiting:
        """Look again later."""
        return Waiting(why, look_again_after, self.memo.to_json())

    def search(self, why: str, look_again_after: float) -> Waiting:
        """Look again later, and tell what was tried before."""
        tried = f" (tried: {'; '.join(self.memo.tried[-3:])})" if self.memo.tried else ""
        return self.wait(why + tried, look_again_after)

    def trouble(self, problem: Problem) -> Waiting:
        """The API did not answer, or asked us to hold back: look again with growing pauses, change nothing."""
        first = _MINUTE if problem.kind == "throttled" else _FIRST
        pause = min(first * 2.0 ** min(self.memo.problems, 8), max(first * 4, _MOST))
        return self.remember(problems=self.memo.problems + 1).wait(problem.message, pause * self._spread())

    def _spread(self) -> float:
        """Between 1 and 1.25, by the name: many jobs that were held back do not come back at once."""
        return 1 + sum(self.request.name.encode()) % 64 / 256


def denied(problem: Problem) -> Denied:
    """The request cannot be served, in the cloud's own words."""
    kinds: dict[str, FailureKind] = {"quota": "quota", "auth": "auth", "stockout": "stockout"}
    return Denied(Failure(kinds.get(problem.kind, "config"), evidence=problem.message, hint=problem.hint))
