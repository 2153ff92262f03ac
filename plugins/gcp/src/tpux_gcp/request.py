"""A request for a TPU at one step: the state saved between steps, the API, and the answers of a step."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from typing import Literal, cast

from tpux import Denied, Failure, JsonValue, ProvisionRequest, Ready, Waiting
from tpux.api.machines import clock_rate
from tpux.fields import Backoff, FailureKind
from tpux_gcp.api import Api
from tpux_gcp.claims import Note
from tpux_gcp.credentials import Place
from tpux_gcp.errors import Problem, ProblemKind
from tpux_gcp.labels import owner_labels, tpu_name
from tpux_gcp.resource import Location, TpuResource
from tpux_gcp.section import GcpTpuSection, apply_flags
from tpux_gcp.spec import Candidate, section_of

Answer = Ready | Waiting | Denied
Phase = Literal["requesting", "deleting", "backing-off", "refused"]

MAX_HISTORY = 20
"""How many tried candidates are kept."""
ERROR_BACKOFF = Backoff(first=5.0, cap=120.0)
"""Before the next step after an API error."""
THROTTLED_BACKOFF = Backoff(first=60.0, cap=240.0)
"""Before the next step after the API has answered that there are too many requests."""


# Real time that includes a suspend and is steady while this process runs; the next process begins with the wall time.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_ANCHOR = time.time() - time.clock_gettime(_CLOCK)


def now() -> float:
    """Return the time in tpux seconds. Only differences have a meaning; it continues over a supervisor's restart."""
    return (_ANCHOR + time.clock_gettime(_CLOCK)) * clock_rate()


@dataclass(frozen=True)
class SavedState:
    """The state of a request, which core writes to disk before it calls the next step. Times are from `now`.

    Attributes:
        name: the TPU's name: from its creation on it does not depend on the config any more.
        slices: the number of its slices.
        project, endpoint: where the request began, and where it stays until everything is released.
        zone, accelerator: the current candidate.
        candidate_index: its position in the list of candidates.
        candidate_since: when it became the current one.
        phase: `requesting` it, `deleting` what was created for it, `backing-off` until `backoff_until`, or `refused`
            if the request, or every candidate, was: then nothing exists.
        refusals: problem kind, candidate and message of each candidate of this round that asking again does not help.
        refused: kind, evidence and hint of the failure with which the request was refused; empty if each candidate was.
        request_id: of the creation that is about to be sent or was sent.
        operation: the operation that the API returned for it; empty if no response came, and once the TPU was ready.
        sent_at: when a creation was last sent that may still take effect, or is about to be; 0 if there is none.
        repeated: an earlier sending of it was not answered.
        unanswered_at: when that one was sent, also once the creation has succeeded: it may take effect later, if the
            name is free again by then.
        after_delete: request the `next` candidate, or `retry` the same one.
        rounds: how often all candidates were tried.
        retries: how often the current candidate was lost and requested again.
        history: the outcome of each tried candidate, for the user.
        observed_state, observed_since: the last observed state, and when it was first observed.
        errors: consecutive steps in which the API failed.
        borrowed: tpux did not create the TPU.
        claim: what is noted of the claim of a borrowed TPU.
        leased: the names under which it is leased, or is about to be. They outlive it, and the attempt to borrow it.
        metadata_operation: the operation that adds our public keys to the metadata.
        os_login_user: the login user of VMs with OS Login; empty if the keys were not imported.
        absent_since: since when a TPU whose creation was sent does not exist.
        replacing: a previous TPU of this name is being deleted; then a new one is created.
        unauthenticated_since: since when creations fail because the login is no longer valid; 0 if they do not.
        configured_name: `tpu.name`. In each zone an existing TPU of this name is adopted; if there is none, the job
            creates one under its `unique_name`.
    """

    project: str
    endpoint: str
    name: str
    slices: int
    zone: str = ""
    accelerator: str = ""
    candidate_index: int = 0
    candidate_since: float = 0.0
    phase: Phase = "requesting"
    request_id: str = ""
    operation: str = ""
    sent_at: float = 0.0
    repeated: bool = False
    unanswered_at: float = 0.0
    after_delete: Literal["next", "retry"] = "next"
    rounds: int = 0
    retries: int = 0
    history: tuple[str, ...] = ()
    refusals: tuple[tuple[ProblemKind, str, str], ...] = ()
    refused: tuple[str, ...] = ()
    backoff_until: float = 0.0
    observed_state: str = ""
    observed_since: float = 0.0
    errors: int = 0
    borrowed: bool = False
    metadata_operation: str = ""
    os_login_user: str = ""
    absent_since: float = 0.0
    replacing: bool = False
    unauthenticated_since: float = 0.0
    configured_name: str = ""
    claim: Note = field(default_factory=Note)
    leased: tuple[str, ...] = ()

    @classmethod
    def begin(cls, place: Place, request: ProvisionRequest, candidate: Candidate) -> SavedState:
        """Return the state of a new request.

        Raises:
            InvalidConfigError: no project is set anywhere, or `tpu.name` is not valid.
        """
        name, tpu = tpu_name(request), request.tpu
        saved = cls(
            place.required_project(), place.endpoint, name, tpu.node_count, configured_name=name if tpu.name else ""
        )
        return saved.begin_candidate(0, candidate, now())

    @property
    def candidate(self) -> Candidate:
        """The current candidate."""
        return Candidate(self.accelerator, self.zone)

    @property
    def location(self) -> Location:
        """The current candidate's zone in the project."""
        return Location(self.project, self.zone)

    def begin_candidate(self, index: int, candidate: Candidate, now: float) -> SavedState:
        """Return the state in which a candidate is requested for the first time, or again."""
        return replace(
            self, candidate_index=index, zone=candidate.zone, accelerator=candidate.accelerator,
            candidate_since=now, phase="requesting", request_id=str(uuid.uuid4()), operation="", sent_at=0.0,
            repeated=False, metadata_operation="", observed_state="", observed_since=now, errors=0, borrowed=False,
            absent_since=0.0, replacing=False, name=self.configured_name or self.name,
            unanswered_at=0.0, claim=Note(),
        )  # fmt: skip

    def begin_delete(self, outcome: str, then: Literal["next", "retry"]) -> SavedState:
        """Return the state in which the current candidate's TPU is deleted.

        Args:
            outcome: what became of the candidate, for its history.
            then: what to request after the deletion.
        """
        history = (*self.history, f"{self.candidate}: {outcome}")[-MAX_HISTORY:]
        return replace(self, history=history, phase="deleting", after_delete=then)

    def to_json(self) -> dict[str, JsonValue]:
        """Return the state as JSON data."""
        return cast(
            "dict[str, JsonValue]",
            {
                **asdict(self),
                "history": list(self.history),
                "refusals": [list(each) for each in self.refusals],
                "refused": list(self.refused),
                "leased": list(self.leased),
            },
        )

    @classmethod
    def from_json(cls, data: Mapping[str, JsonValue]) -> SavedState | None:
        """Return the state that `to_json` wrote, None if nothing has begun."""
        if not data.get("project"):
            return None
        known = {each.name for each in fields(cls)}
        values = {key: value for key, value in data.items() if key in known}
        values["history"] = tuple(cast("list[str]", values.get("history") or []))  # type: ignore[assignment]
        refusals = cast("list[list[str]]", values.get("refusals") or [])
        values["refusals"] = tuple(tuple(each) for each in refusals)  # type: ignore[assignment]
        values["claim"] = Note(**cast("dict[str, JsonValue]", values.get("claim") or {}))  # type: ignore[arg-type,assignment]
        for key in ("refused", "leased"):
            values[key] = tuple(cast("list[str]", values.get(key) or []))  # type: ignore[assignment]
        return cls(**values)  # type: ignore[arg-type]


UNANSWERED_FOR = 900.0
"""Seconds for which a creation that was not answered may still take effect. Until then it is looked for."""
INTENT_VALID_FOR = 120.0
"""Seconds within which a saved intent is carried out. After a longer pause, such as a suspended machine, another one is
saved first, since `sent_at` must not be long before the call."""
about_to_send: set[tuple[str, float]] = set()
"""The intents, `request_id` and `sent_at`, that this process has returned to be saved and has not carried out."""


@dataclass(frozen=True)
class RequestContext:
    """One step of a request.

    Attributes:
        request: the request, with `tpu.flags` applied to its `tpu` section.
        saved: the state after the previous step.
        queue: create the TPU through a queued resource.
        now: the time of this step.
    """

    request: ProvisionRequest
    saved: SavedState
    queue: bool
    now: float

    @classmethod
    def load(cls, request: ProvisionRequest, *, queue: bool) -> RequestContext | None:
        """Return the context of the next step, None if nothing has begun.

        Raises:
            InvalidConfigError: `tpu.flags` is invalid.
        """
        saved = SavedState.from_json(request.saved_state)
        request = replace(request, tpu=apply_flags(request.tpu))
        # The API creates a multislice only through a queued resource.
        return None if saved is None else cls(request, saved, queue or saved.slices > 1, now())

    @property
    def tpu(self) -> GcpTpuSection:
        """The config's `tpu` section."""
        return section_of(self.request.tpu)

    @cached_property
    def api(self) -> Api:
        """The API that the request began with."""
        return Api(self.place)

    @property
    def place(self) -> Place:
        """The place where the request began, with the job's credentials."""
        resolved = Place.from_json(self.request.resolved)
        return replace(resolved, project=self.saved.project, endpoint=self.saved.endpoint)

    @property
    def name(self) -> str:
        """The TPU's name."""
        return self.saved.name

    @property
    def has_own_name(self) -> bool:
        """Whether tpux made the name, with the job's id and token: what has it was created by the job."""
        return self.saved.name != self.saved.configured_name

    @property
    def errors_before(self) -> int:
        """How many steps before this one in a row failed; `saved.errors` is 0 again once a call has succeeded."""
        saved = SavedState.from_json(self.request.saved_state)
        return saved.errors if saved else 0

    def lease_names(self, resource: TpuResource) -> list[str]:
        """Return the names under which the TPU is leased: the same for every job that could use it."""
        return resource.lease_names(self.saved.location, self.name)

    def leasing(self, resource: TpuResource) -> RequestContext:
        """Return the context in which the names of a TPU are noted as leased."""
        return self.update(leased=tuple(dict.fromkeys([*self.saved.leased, *self.lease_names(resource)])))

    def get_resource(self) -> TpuResource | None:
        """Return what exists under the TPU's name, None if the API answers that there is nothing.

        Raises:
            CloudError: the call failed; what exists is unknown.
        """
        location = self.saved.location
        resource = self.api.tpu(location, self.name, queue=self.queue)
        if resource is None and self.saved.slices > 1:  # its nodes have other names
            owners = [owner_labels(labels) for labels in (self.request.labels, *self.request.previous_owners)]
            return self.api.leftover_nodes(location, self.name, owners, self.saved.slices)
        return resource

    def update(self, **change: object) -> RequestContext:
        """Return the context with fields of the saved state changed."""
        return self.with_saved(replace(self.saved, **change))  # type: ignore[arg-type]

    def with_saved(self, saved: SavedState) -> RequestContext:
        """Return the context with another saved state."""
        return replace(self, saved=saved)

    def restart_candidate(self) -> RequestContext:
        """Return the context in which the current candidate is requested afresh."""
        saved = self.saved
        fresh = self.with_saved(saved.begin_candidate(saved.candidate_index, saved.candidate, self.now))
        # Under the same name an earlier creation that takes effect late finds the name taken, or is adopted.
        return fresh.update(name=saved.name, unanswered_at=saved.unanswered_at) if self.late_for else fresh

    def observed(self, state: str) -> RequestContext:
        """Return the context after a successful call of the API, noting when the state changed."""
        if state == self.saved.observed_state:
            return self.update(errors=0) if self.saved.errors else self
        return self.update(errors=0, observed_state=state, observed_since=self.now)

    def sent_now(self) -> RequestContext:
        """Return the context after a creation that was not answered; the call may have taken half a minute."""
        return self.update(sent_at=now())

    @property
    def observed_for(self) -> float:
        """The seconds for which the state has been the same."""
        return self.now - self.saved.observed_since

    @property
    def intent(self) -> tuple[str, float]:
        """The saved intent to send a creation, as in `about_to_send`."""
        return self.saved.request_id, self.saved.sent_at

    @property
    def may_send(self) -> bool:
        """Whether the saved intent is this process's, is not carried out yet, and is not old."""
        return self.intent in about_to_send and 0 <= self.now - self.saved.sent_at <= INTENT_VALID_FOR

    @property
    def was_sent(self) -> bool:
        """Whether the creation was sent, or may have been by a process that has ended."""
        saved = self.saved
        return bool(saved.operation or (saved.sent_at and (saved.repeated or self.intent not in about_to_send)))

    @property
    def nothing_sent(self) -> bool:
        """Whether no creation of the current candidate can have taken effect, or can do so later."""
        return not (self.saved.operation or self.saved.sent_at or self.saved.observed_state or self.late_for)

    @property
    def late_for(self) -> float:
        """The seconds for which a creation that was not answered, and was sent again, may still take effect."""
        since = min(self.saved.unanswered_at, self.now)  # the clock was set back
        return max(0.0, since + UNANSWERED_FOR - self.now) if since else 0.0

    def wait(self, why: str, seconds: float) -> Waiting:
        """Return the answer that the next step comes in so many seconds."""
        return Waiting(why, seconds, self.saved.to_json())

    def wait_with_history(self, why: str, seconds: float) -> Waiting:
        """Return the same answer as `wait`, with the candidates that were tried last."""
        tried = f" (tried: {'; '.join(self.saved.history[-3:])})" if self.saved.history else ""
        return self.wait(why + tried, seconds)

    def retry_later(self, problem: Problem) -> Waiting:
        """Return the answer after an API error: nothing changes, and the next step comes after a growing pause."""
        backoff = THROTTLED_BACKOFF if problem.kind == "throttled" else ERROR_BACKOFF
        pause = backoff.delay(self.saved.errors)
        # Up to a quarter more, by the job's name, so that throttled jobs do not all return at once.
        spread = 1 + sum(self.request.name.encode()) % 64 / 256
        return self.update(errors=self.saved.errors + 1).wait(problem.message, pause * spread)


def deny(problem: Problem) -> Denied:
    """Return the answer that the request failed, with the API's own message."""
    kinds: dict[ProblemKind, FailureKind] = {
        "quota": "quota", "quota-used": "quota", "auth": "auth", "disabled": "auth", "forbidden": "auth",
        "stockout": "stockout",
    }  # fmt: skip
    return Denied(Failure(kinds.get(problem.kind, "config"), evidence=problem.message, hint=problem.hint))
