"""The allocator `pool`: it chooses a TPU that nobody uses, leases it, and lets gcp borrow it under its own name.

What keeps two jobs from one TPU is the lease, and between stores gcp's claim. The pool requests no TPU and deletes
none: gcp gets `tpu.existing`, under which it does neither.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, cast

from tpux import (
    Denied,
    Finding,
    Job,
    MachineStatus,
    Orphan,
    ProvisionRequest,
    Ready,
    Released,
    Section,
    TpuSection,
    TpuxError,
    Waiting,
    hookimpl,
)
from tpux.api import machines
from tpux_gcp import provision as gcp_provision
from tpux_gcp import release as gcp_release
from tpux_gcp.allocators import Allocator, inspect
from tpux_gcp.api import Api
from tpux_gcp.claims import claim_of_another
from tpux_gcp.credentials import Place
from tpux_gcp.errors import CloudError, InvalidConfigError
from tpux_gcp.labels import STORE
from tpux_gcp.resource import Location
from tpux_pool import queue
from tpux_pool.section import PoolSection, PoolTpuSection
from tpux_pool.shared import Demand, SharedTpu, lease_names, list_shared, require_project

if TYPE_CHECKING:
    from tpux import JsonValue

POLL = 10.0
AVOIDED_FOR = 300.0
"""Seconds for which a TPU is not chosen again that could not be borrowed."""


@dataclass(frozen=True)
class Chosen:
    """The TPU that a job has chosen."""

    name: str
    zone: str
    project: str
    accelerator: str
    nodes: int
    leases: tuple[str, ...]


@dataclass(frozen=True)
class State:
    """The state of a request between two steps.

    Attributes:
        since: when it began.
        chosen: the TPU, None while it looks for one.
        leased: its lease was acquired.
        giving_back: why the TPU is not used after all.
        gcp: the state of gcp's request for it.
        avoid: until when TPUs are not chosen, by `zone/name`.
    """

    since: float
    chosen: Chosen | None = None
    leased: bool = False
    giving_back: str = ""
    gcp: Mapping[str, JsonValue] = field(default_factory=dict)
    avoid: Mapping[str, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, JsonValue]:
        """Return the state as JSON data."""
        data = asdict(self)
        if self.chosen is not None:
            data["chosen"]["leases"] = [*self.chosen.leases]
        return cast("dict[str, JsonValue]", data)

    @classmethod
    def from_json(cls, data: Mapping[str, JsonValue]) -> State | None:
        """Return the state that `to_json` wrote, None if nothing has begun."""
        if "since" not in data:
            return None
        values = dict(cast("Mapping[str, object]", data))
        if isinstance(chosen := values["chosen"], dict):
            values["chosen"] = Chosen(**{**chosen, "leases": tuple(chosen["leases"])})
        return cls(**values)  # type: ignore[arg-type]

    def wait(self, why: str, seconds: float) -> Waiting:
        """Return the answer that the next step comes in so many seconds."""
        return Waiting(why, seconds, self.to_json())

    def without_tpu(self, avoid: str = "") -> State:
        """Return the state in which it looks for a TPU again."""
        until = {key: end for key, end in self.avoid.items() if end > time.time()}
        return State(self.since, avoid={**until, **({avoid: time.time() + AVOIDED_FOR} if avoid else {})})


class Pool(Allocator):
    """The allocator; what it does not say itself is as for gcp's."""

    def __init__(self) -> None:
        super().__init__(queue=True)

    @hookimpl
    def config_section(self) -> type[Section]:
        """Return the model of the section `pool`."""
        return PoolSection

    @hookimpl
    def tpu_section(self) -> type[TpuSection]:
        """Return the model of the section `tpu`."""
        return PoolTpuSection

    @hookimpl
    def provision(self, request: ProvisionRequest) -> Ready | Waiting | Denied:
        """Take one step towards a TPU that nobody uses."""
        state = State.from_json(request.saved_state)
        if state is None:
            return State(time.time()).wait("looking for a TPU of the pool", 0)
        try:
            if state.chosen is None:
                return _choose(request, state)
            if state.giving_back:
                left = _give_back(request, state)
                return left if isinstance(left, Waiting) else _next(state)
            return _borrow(request, state, state.chosen)
        except (CloudError, InvalidConfigError, OSError, TpuxError) as error:
            return state.wait(f"looking for a TPU of the pool: {error}", POLL)

    @hookimpl
    def inspect(self, request: ProvisionRequest) -> MachineStatus:
        """Return the state of the TPU."""
        state = State.from_json(request.saved_state)
        if state is None or state.chosen is None:
            return MachineStatus("gone", evidence="no TPU of the pool was borrowed")
        status = inspect(_for_gcp(request, state, state.chosen), queue=True)
        return replace(status, wanted_by=_who_waits(request, state.chosen)) if request.shared else status

    @hookimpl
    def release(self, request: ProvisionRequest) -> Released | Waiting:
        """Give the TPU back: nothing is deleted."""
        queue.leave(request.labels["tpux-job"])
        state = State.from_json(request.saved_state)
        return Released() if state is None else _give_back(request, state)

    @hookimpl
    def find_machines(self, request: ProvisionRequest) -> Ready | Waiting | None:
        """Leave machines that a user names to gcp's allocators."""
        del request
        return None

    @hookimpl
    def find_orphans(self, places: Sequence[Mapping[str, JsonValue]]) -> list[Orphan]:
        """Return nothing: what the pool uses it has not created."""
        del places
        return []

    @hookimpl
    def preflight(self, job: Job) -> list[Finding]:
        """Check nothing: which TPUs there are, and what they are, is known when one is chosen."""
        del job
        return []

    def _serves(self, job: Job) -> bool:
        return job.tpu.allocation_mode == "pool"


def _choose(request: ProvisionRequest, state: State) -> Waiting:
    """Choose the first TPU that is free and that no job takes which came before."""
    place = Place.from_json(request.resolved)
    require_project(place.project)
    demand = Demand.of(request, state.since, [key for key, end in state.avoid.items() if end > time.time()])
    queue.enter(demand)
    every = list_shared(Api(place))
    free = [*every]
    earlier = queue.before(demand)
    for other in earlier:
        if (taken := other.choose(free)) is not None:
            free.remove(taken)
    if (tpu := demand.choose(free)) is None:
        return state.wait(_why(demand, every, earlier), POLL)
    found = tpu.found
    chosen = Chosen(
        found.name,
        found.location.zone,
        place.project,
        found.resource.accelerator,
        len(found.resource.nodes),
        tuple(lease_names(found)),
    )
    return replace(state, chosen=chosen).wait(f"taking {tpu.called}", 0)


def _who_waits(request: ProvisionRequest, chosen: Chosen) -> str:
    """Return the first job that waits for a TPU and would take this one, but finds none that is free."""
    if not (demands := queue.waiting()):
        return ""
    try:
        every = list_shared(Api(Place.from_json(request.resolved)))
    except (CloudError, TpuxError):
        return ""
    free, kept = [*every], [tpu for tpu in every if tpu.key == f"{chosen.zone}/{chosen.name}"]
    for demand in demands:
        if (taken := demand.choose(free)) is not None:
            free.remove(taken)
        elif any(demand.fits(tpu) and tpu.key not in demand.avoid for tpu in kept):
            return f"job {int(demand.job)} of {demand.user}"
    return ""


def _why(demand: Demand, every: Sequence[SharedTpu], earlier: Sequence[Demand]) -> str:
    """Return what a job waits for, who has it, and how many come before."""
    fitting = [tpu for tpu in every if demand.fits(tpu)]
    what = demand.name or " or ".join(demand.accelerators) or "TPU"
    if not fitting:
        return f"no TPU of the pool is {what} as the config asks for; `tpux tpu register NAME` adds one"
    rivals = [other for other in earlier if any(map(other.fits, fitting))]
    place = f"place {len(rivals) + 1} in the queue"
    if rivals:
        place += f" after {', '.join(f'job {int(other.job)} of {other.user}' for other in rivals[:3])}"
    reasons = [f"{tpu.called} {_reason(demand, tpu)}" for tpu in fitting]
    return f"waits for {what}, {place}: {'; '.join(reasons[:3])}{', ...' if len(reasons) > 3 else ''}"


def _reason(demand: Demand, tpu: SharedTpu) -> str:
    if tpu.use is not None or not tpu.is_ready:
        return f"is {tpu.use or tpu.found.resource.state}"
    return "could not be borrowed just now" if tpu.key in demand.avoid else "is for a job that came before"


def _borrow(request: ProvisionRequest, state: State, chosen: Chosen) -> Ready | Waiting | Denied:
    """Take one step towards borrowing the chosen TPU; give it back if somebody else has it, or it is not ready."""
    named = bool(request.tpu.name)
    if not state.leased:
        if not named and machines.HOLD in map(machines.holder_of, chosen.leases):  # also one of the user's own
            return state.without_tpu().wait(f"{chosen.name} is held now", 0)
        if machines.acquire_all(chosen.leases, request.labels):
            return state.without_tpu().wait(f"{chosen.name} is in use by now", 0)
        return replace(state, leased=True).wait(f"borrowing {chosen.name}", 0)
    place = replace(Place.from_json(request.resolved), project=chosen.project)
    resource = Api(place).tpu(Location(chosen.project, chosen.zone), chosen.name, queue=True)
    if resource is None or resource.status != "ready":
        return _give_up(state, resource.state if resource else f"{chosen.name} no longer exists")
    if claim_of_another(resource.labels, request.labels[STORE]) is not None:
        return _give_up(state, f"another store has claimed {chosen.name}")
    answer = gcp_provision.provision(_for_gcp(request, state, chosen), queue=True)
    if isinstance(answer, Denied):
        return _give_up(state, answer.failure.evidence)
    state = replace(state, gcp=answer.saved_state or state.gcp)
    if isinstance(answer, Waiting):
        return replace(answer, saved_state=state.to_json())
    queue.leave(request.labels["tpux-job"])
    return replace(answer, saved_state=state.to_json())


def _give_up(state: State, why: str) -> Waiting:
    return replace(state, giving_back=why).wait(why, 0)


def _next(state: State) -> Waiting:
    chosen = state.chosen
    avoid = f"{chosen.zone}/{chosen.name}" if chosen else ""
    return state.without_tpu(avoid).wait(f"looking for another TPU: {state.giving_back}", 0)


def _give_back(request: ProvisionRequest, state: State) -> Released | Waiting:
    """Take one step of giving the TPU back: first gcp's claim and leases, then the pool's."""
    chosen = state.chosen
    if chosen is None:
        return Released()
    left = ""
    if state.gcp:
        answer = gcp_release.release(_for_gcp(request, state, chosen), queue=True)
        if isinstance(answer, Waiting):
            state = replace(state, gcp=answer.saved_state or state.gcp)
            return replace(answer, saved_state=state.to_json())
        left = answer.left
    for name in chosen.leases:
        machines.release(name, request.labels)
    return Released(left)


def _for_gcp(request: ProvisionRequest, state: State, chosen: Chosen) -> ProvisionRequest:
    """Return the request with which gcp borrows the chosen TPU, creates nothing and deletes nothing."""
    tpu = request.tpu.model_copy(
        update={
            "name": chosen.name,
            "zone": chosen.zone,
            "accelerator": chosen.accelerator,
            "node_count": chosen.nodes,
            "project": chosen.project,
            "existing": True,
        }
    )
    return replace(request, name=chosen.name, tpu=tpu, section=None, saved_state=dict(state.gcp), previous_owners=())


pool = Pool()
