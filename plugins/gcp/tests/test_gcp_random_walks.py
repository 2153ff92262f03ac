"""Random walks of `provision` and `release`, with a virtual clock: crashes at any call, answers that are lost or late.

After `Released` nothing exists and nothing appears any more, and at no time are there two TPUs.
"""

from __future__ import annotations

import heapq
import itertools
import json
import random
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpux import Denied, ProvisionRequest, Ready, Released, Waiting
from tpux_gcp import provision, release, request
from tpux_gcp.errors import CloudError, Problem
from tpux_gcp.existence import UNANSWERED_FOR
from tpux_gcp.resource import Endpoint, Location, Node, Operation, TpuResource
from tpux_gcp.section import GcpTpuSection

LABELS = {"tpux-store": "s", "tpux-user": "u", "tpux-job": "000012", "tpux-token": "abcd"}
LATE = UNANSWERED_FOR - 60
"""Seconds after which a request that was not answered may be handled."""
MAX_STEPS = 3000
REFUSALS = ("stockout", "quota-used", "quota", "throttled", "transient", "exists", "forbidden")


class Crash(BaseException):
    """Stands for a kill -9 between two instructions."""


@dataclass(eq=False)
class Tpu:
    """A TPU that was created."""

    name: str
    zone: str
    labels: dict[str, str]
    state: str = "CREATING"

    def become(self, state: str) -> None:
        if self.state != "DELETING":
            self.state = state


@dataclass
class Creation:
    """The operation of a creation."""

    target: str
    fails: bool = False
    done: bool = False
    known: bool = True

    def end(self) -> None:
        self.done = True

    def forget(self) -> None:
        self.known = False


@dataclass
class Cloud:
    """The API, as the plugin's `Api` shows it. What happens by itself happens while the clock advances."""

    choose: random.Random
    now: float = 1_000_000.0
    tpus: dict[tuple[str, str], Tpu] = field(default_factory=dict)
    creations: dict[str, Creation] = field(default_factory=dict)
    by_request: dict[str, str] = field(default_factory=dict)
    most: int = 0

    def __post_init__(self) -> None:
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._crashes = self.choose.choice([0, 0.02, 0.1])
        self._errors = self.choose.choice([0, 0.05, 0.2])
        self._refusals = self.choose.choice([0, 0.3, 0.7])

    def happens(self, share: float) -> bool:
        return self.choose.random() < share

    def after(self, seconds: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + seconds, next(self._numbers), event))

    def advance(self, seconds: float) -> None:
        end = self.now + seconds
        while self._events and self._events[0][0] <= end:
            self.now, _, event = heapq.heappop(self._events)
            event()
            self.most = max(self.most, len(self.tpus))
        self.now = end

    def _call(self) -> None:
        """Pass the time of a call, in which this process may die; the call may fail."""
        self.advance(self.choose.choice([0, 0, 0.1, 1, 14]))
        if self.happens(self._crashes):
            raise Crash
        if self.happens(self._errors):
            raise CloudError(Problem(self.choose.choice(["transient", "throttled"]), "no luck"))

    def _returns(self) -> None:
        self.advance(self.choose.choice([0, 0, 0.1, 1]))
        if self.happens(self._crashes):
            raise Crash

    def tpu(self, location: Location, name: str, *, queue: bool) -> TpuResource | None:
        del queue
        self._call()
        found = self.tpus.get((location.zone, name))
        endpoints = (Endpoint("1", "2"),) if found and found.state == "READY" else ()
        node = found and Node(name, found.zone, found.state, labels=dict(found.labels), endpoints=endpoints)
        self._returns()
        return TpuResource.from_node(node) if node else None

    def operation(self, name: str) -> Operation | None:
        self._call()
        one = self.creations[name]
        failed = one.done and one.fails
        answer = Operation(one.done, 8 if failed else 0, "no more capacity" if failed else "") if one.known else None
        self._returns()
        return answer

    def running_creation(self, location: Location, target: str) -> str:
        del location
        self._call()
        found = next((name for name, one in self.creations.items() if not one.done and one.target == target), "")
        self._returns()
        return found

    def create_node(self, location: Location, name: str, message: dict) -> str:
        return self._create(location, name, location.node(name), message["labels"])

    def create_queued_resource(self, location: Location, name: str, message: dict, request_id: str) -> str:
        labels = message["tpu"]["nodeSpec"][0]["node"]["labels"]
        return self._create(location, name, location.queued_resource(name), labels, request_id)

    def _create(self, location: Location, name: str, target: str, labels: dict, request_id: str = "") -> str:
        def handle() -> str:
            if request_id and request_id in self.by_request:
                return self.by_request[request_id]
            self.by_request[request_id] = operation = self._begin(Tpu(name, location.zone, dict(labels)), target)
            return operation

        if self.happens(self._crashes * 2):
            self._lose(handle)
            raise Crash
        if self.happens(self._refusals / 2):
            self._lose(handle)
            self.advance(30)
            raise CloudError(Problem("transient", "no answer", unanswered=True))
        if self.happens(self._refusals / 2):
            raise CloudError(Problem(self.choose.choice(REFUSALS), "refused"))
        operation = handle()
        self._returns()
        return operation

    def _lose(self, handle: Callable[[], str]) -> None:
        """Handle a request whose answer is lost: now, later or never."""

        def unseen() -> None:
            with suppress(CloudError):
                handle()

        if (when := self.choose.choice(["never", "now", "late"])) != "never":
            self.after(0 if when == "now" else self.choose.uniform(0, LATE), unseen)

    def _begin(self, tpu: Tpu, target: str) -> str:
        """Begin to create a TPU, which will appear, or fail, or both; the API may forget the operation."""
        if (tpu.zone, tpu.name) in self.tpus:
            raise CloudError(Problem("exists", "it exists"))
        name = f"operations/{next(self._numbers)}"
        one = self.creations[name] = Creation(target)
        outcome = "ready"
        if self.happens(self._refusals * 0.6):
            outcome, one.fails = self.choose.choice(["never", "vanishes", "stays"]), True
        appears, ends = self.choose.uniform(0, 20), self.choose.uniform(0, 60)
        if self.happens(0.2):  # it is visible late
            appears, ends = self.choose.uniform(60, 100), 0.5
        if outcome != "never":
            self.after(min(appears, ends) if one.fails else appears, lambda: self._appear(tpu))
        self.after(ends, one.end)
        if self.happens(0.3):
            self.after(ends + self.choose.uniform(0, 30), one.forget)
        self._plan_its_life(tpu, outcome, max(appears, ends))
        return name

    def _plan_its_life(self, tpu: Tpu, outcome: str, created: float) -> None:
        if outcome == "ready":
            self.after(created + 1, lambda: tpu.become("READY"))
            if self.happens(0.3):
                self.after(created + self.choose.uniform(1, 200), lambda: tpu.become("PREEMPTED"))
        if outcome == "vanishes" or (outcome == "ready" and self.happens(0.3)):  # the cloud or a person deletes it
            self.after(created + self.choose.uniform(0, 200), lambda: self._remove(tpu))

    def _appear(self, tpu: Tpu) -> None:
        self.tpus[tpu.zone, tpu.name] = tpu

    def _remove(self, tpu: Tpu) -> None:
        if self.tpus.get((tpu.zone, tpu.name)) is tpu:
            del self.tpus[tpu.zone, tpu.name]

    def delete(self, location: Location, resource: TpuResource) -> None:
        self._call()
        if tpu := self.tpus.get((location.zone, resource.nodes[0].name)):
            tpu.state = "DELETING"
            self.after(self.choose.uniform(0, 30), lambda: self._remove(tpu))
        self._returns()

    def accelerator_types(self, location: Location) -> list[str]:
        del location
        self._call()
        return ["v4-8"]

    def guest_attributes(self, *_: object) -> list[dict]:
        return [{}]

    def leftover_nodes(self, *_: object) -> None:
        return None


@pytest.fixture(scope="module", autouse=True)
def without_leases() -> Iterator[None]:
    """Nobody borrows these TPUs, and no other job is in the store."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tpux.store.leases.acquire", lambda *_: "")
        patch.setattr("tpux.store.leases.release", lambda *_: None)
        patch.setattr("tpux.store.leases.is_active", lambda _: False)
        yield


class Walk:
    """One request, its steps taken by processes that may die; what a step answers may not be saved."""

    def __init__(self, seed: int, directory: Path, *, suspends: bool) -> None:
        self.choose = random.Random(seed)
        self._directory = directory
        self.cloud = Cloud(self.choose)
        self.queue = self.choose.random() < 0.4
        self._suspends = 0.05 if suspends else 0.0
        self._unsaved = self.choose.choice([0, 0.1])
        self._saved: dict = {}
        mode = "queued-resources" if self.queue else "tpu-vm"
        zones = self.choose.choice([["z1"], ["z1", "z2"]])
        self._tpu = GcpTpuSection(allocation_mode=mode, accelerator="v4-8", zone=zones)

    def take(self, hook: Callable, steps: int, end: tuple[type, ...]) -> object:
        """Take steps until one answers what ends them; return that answer, None if none did."""
        for _ in range(steps):
            if self.cloud.happens(self._suspends):
                self.cloud.advance(self.choose.choice([60, 1000, 3600]))
            saved = json.loads(json.dumps(self._saved))
            resolved = {"project": "p", "endpoint": "http://e"}
            asked = ProvisionRequest("t-000012", self._tpu, None, LABELS, (), self._directory, saved, resolved=resolved)
            try:
                answer = hook(asked, queue=self.queue)
            except Crash:
                request.about_to_send.clear()  # the next process knows nothing of it
                self.cloud.advance(self.choose.choice([0.1, 5, 60]))
                continue
            if self.cloud.happens(self._unsaved):  # a full disk: core calls the step again
                self.cloud.advance(1)
                continue
            if isinstance(answer, (Waiting, Ready)) and answer.saved_state is not None:
                self._saved = dict(answer.saved_state)
            if isinstance(answer, end):
                return answer
            self.cloud.advance(max(answer.poll_after, 0.05))
        return None


@given(seed=st.integers(0, 2**32), suspends=st.booleans())
def test_nothing_is_left_after_a_release_and_there_are_never_two(seed, suspends):
    request.about_to_send.clear()
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as directory:
        walk = Walk(seed, Path(directory), suspends=suspends)
        patch.setattr(request.RequestContext, "api", walk.cloud)
        patch.setattr(request, "now", lambda: walk.cloud.now)
        if isinstance(walk.take(provision.provision, walk.choose.randint(1, 60), (Ready, Denied)), Ready):
            walk.cloud.advance(walk.choose.choice([0, 100, 1000]))
        assert isinstance(walk.take(release.release, MAX_STEPS, (Released,)), Released)
    walk.cloud.advance(2 * UNANSWERED_FOR)
    assert (walk.cloud.tpus, walk.cloud.most <= 1) == ({}, True)
