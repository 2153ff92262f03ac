"""One step of a request: what is asked, what is remembered, and whom to ask."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from tpux import Denied, Failure, FailureKind, ProvisionRequest, Ready, TpuSection, Waiting
from tpux_gcp import clock, flags, names, where
from tpux_gcp.api import Api
from tpux_gcp.memo import Memo
from tpux_gcp.problems import Problem
from tpux_gcp.spec import Candidate, candidates
from tpux_gcp.things import Thing, look

Answer = Ready | Waiting | Denied

_FIRST, _MOST = 5.0, 120.0
_MINUTE = 60.0


@dataclass(frozen=True)
class Errand:
    """A request at one of its steps.

    Attributes:
        queue: whether it is served by a queued resource.
        now: the time of the step (`clock.now`).
    """

    request: ProvisionRequest
    memo: Memo
    queue: bool
    now: float

    @classmethod
    def of(cls, request: ProvisionRequest, *, queue: bool) -> Errand | None:
        """The request as it stands; None where nothing was begun.

        Several slices are always had by a queued resource: the API knows no other way.

        Raises:
            RefusedError: `tpu.flags` cannot be understood.
        """
        memo = Memo.read(request.saved_state)
        request = flags.in_request(request)
        return None if memo is None else cls(request, memo, queue or request.tpu.node_count > 1, clock.now())

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
        return names.node_id(self.request)

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

    def wait(self, why: str, poll_after: float) -> Waiting:
        """Look again later."""
        return Waiting(why, poll_after, self.memo.to_json())

    def search(self, why: str, poll_after: float) -> Waiting:
        """Look again later, and tell what was tried before."""
        tried = f" (tried: {'; '.join(self.memo.tried[-3:])})" if self.memo.tried else ""
        return self.wait(why + tried, poll_after)

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
