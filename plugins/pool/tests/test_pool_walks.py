"""Random walks of jobs through the pool's steps, with a virtual clock: crashes at any call, answers that are not saved.

At no time do two jobs use one TPU, nor a job one that another user holds; nothing is created or deleted; at the end no
lease and no claim is left.
"""

from __future__ import annotations

import heapq
import json
import random
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tpux import ProvisionRequest, Ready, Released, Waiting
from tpux.api import machines
from tpux_gcp import borrowing
from tpux_gcp import request as gcp_request
from tpux_gcp.claims import claims_in
from tpux_gcp.errors import CloudError, Problem
from tpux_gcp.lookup import FoundTpu
from tpux_gcp.registered import Registered
from tpux_gcp.resource import Endpoint, Location, Node, TpuResource
from tpux_pool.allocator import pool
from tpux_pool.section import PoolSection, PoolTpuSection

NAMES = ("one", "two")


class Crash(BaseException):
    """Stands for a kill -9 between two instructions."""


class Cloud:
    """TPUs that people share; labels are replaced some time after the call."""

    project = "p"

    def __init__(self, choose: random.Random) -> None:
        self.choose, self.now = choose, 1_000_000.0
        self.states = dict.fromkeys(NAMES, "READY")
        self.labels: dict[str, dict[str, str]] = {name: {"team": "x"} for name in NAMES}
        self.crashes, self.errors = choose.choice([0, 0.03, 0.1]), choose.choice([0, 0.05])
        self._updates: list[tuple[float, int, str, dict[str, str]]] = []

    def advance(self, to: float) -> None:
        while self._updates and self._updates[0][0] <= to:
            _, _, name, labels = heapq.heappop(self._updates)
            self.labels[name] = labels
        self.now = max(self.now, to)
        if self.choose.random() < 0.01:
            self.become(self.choose.choice(NAMES), self.choose.choice(["READY", "PREEMPTED", "STOPPED", "gone"]))

    def become(self, name: str, state: str) -> None:
        """Change the state of a TPU; a lost one is never ready again, but somebody may make one of the same name."""
        if state == "READY" and self.states[name] in {"PREEMPTED", "gone"}:
            self.labels[name] = {"team": "x"}
            self._updates = [one for one in self._updates if one[2] != name]
            heapq.heapify(self._updates)
        if not (self.states[name] in {"PREEMPTED", "gone"} and state == "STOPPED"):
            self.states[name] = state

    def call(self) -> None:
        if self.choose.random() < self.crashes:
            raise Crash
        if self.choose.random() < self.errors:
            raise CloudError(Problem(self.choose.choice(["transient", "throttled"]), "no luck"))

    def _resource(self, name: str) -> TpuResource | None:
        state = self.states.get(name, "gone")
        endpoints = (Endpoint("1", "2"),) if state == "READY" else ()
        node = Node(name, "z", state, labels=dict(self.labels[name]), endpoints=endpoints, accelerator="v4-8")
        return None if state == "gone" else TpuResource.from_node(node)

    def tpu(self, location: Location, name: str, *, queue: bool) -> TpuResource | None:
        del location, queue
        self.call()
        found = self._resource(name)
        self.call()
        return found

    def list(self) -> list[FoundTpu]:
        self.call()
        found = ((name, self._resource(name)) for name in NAMES)
        return [FoundTpu(name, Location("p", "z"), one) for name, one in found if one is not None]

    def update_node(self, location: Location, name: str, field: str, values: dict[str, str]) -> str:
        del location, field
        due = self.now + self.choose.choice([0, 1, 3])
        heapq.heappush(self._updates, (due, self.choose.getrandbits(32), name, dict(values)))
        self.call()
        return "operation"

    def guest_attributes(self, *_: object) -> list[object]:
        return []

    def running_creation(self, *_: object) -> str:
        return ""

    def start_node(self, *_: object) -> None:
        """A TPU that was stopped after the pool had looked."""

    def delete(self, *_: object) -> None:
        raise AssertionError("the pool deletes nothing")

    def create_node(self, *_: object) -> str:
        raise AssertionError("the pool creates nothing")

    create_queued_resource = create_node


class PoolJob:
    """A job that takes a TPU, uses it, looks after it and gives it back, again and again."""

    def __init__(self, walk: Walk, number: int) -> None:
        self.walk, self.id, self.due = walk, f"{number + 1:06}", walk.cloud.now + number * 0.3
        self.saved: dict[str, object] = {}
        self.hook, self.uses, self.until = "provision", "", 0.0
        name = walk.cloud.choose.choice([None, None, *NAMES])
        self.user = walk.cloud.choose.choice(["ann", "bob"])
        self.tpu = PoolTpuSection(allocation_mode="pool", accelerator="v4-8", name=name)
        self.labels = {"tpux-store": machines.store_id(), "tpux-user": self.user, "tpux-job": self.id}

    def step(self) -> None:
        cloud = self.walk.cloud
        self.due = cloud.now + 1
        resolved = {"project": "p", "endpoint": "http://e"}
        asked = ProvisionRequest(
            "n", self.tpu, PoolSection(), self.labels, (), Path("/nonexistent"),
            json.loads(json.dumps(self.saved)), resolved=resolved,
        )  # fmt: skip
        try:
            if self.hook == "inspect":
                self._look(asked)
                return
            answer = getattr(pool, self.hook)(request=asked)
        except Crash:
            self.due = cloud.now + cloud.choose.choice([0.1, 5, 20])
            return
        if cloud.choose.random() < self.walk.unsaved:  # a full disk: core calls the step again
            return
        if isinstance(answer, (Waiting, Ready)) and answer.saved_state is not None:
            self.saved = dict(answer.saved_state)
        if isinstance(answer, Ready):
            self.uses = answer.allocation.name
            self.walk.check(self)
            self.hook, self.until = "inspect", cloud.now + cloud.choose.choice([20, 300, 4000])
        elif isinstance(answer, Released):
            self.saved, self.hook, self.due = {}, "provision", cloud.now + cloud.choose.choice([1, 100])
        else:
            assert isinstance(answer, Waiting), answer
            self.due = cloud.now + max(answer.poll_after, 0.05)
            if self.hook == "provision" and cloud.choose.random() < 0.02:
                self.hook = "release"  # the user stops it

    def _look(self, asked: ProvisionRequest) -> None:
        status = pool.inspect(request=asked)
        now = self.walk.cloud.now
        self.due = now + (status.poll_after or 30)
        if status.state in {"gone", "preempted", "maintenance"} or now > self.until:
            self.uses, self.hook = "", "release"


class Walk:
    """Some jobs, and a user who holds TPUs now and then."""

    def __init__(self, seed: int) -> None:
        self.cloud = Cloud(random.Random(seed))
        self.unsaved = self.cloud.choose.choice([0, 0.1])
        self.jobs = [PoolJob(self, number) for number in range(self.cloud.choose.choice([2, 3, 4]))]

    def check(self, job: PoolJob) -> None:
        users = [other.id for other in self.jobs if other.uses == job.uses]
        assert users == [job.id], f"{users} use {job.uses}"
        assert machines.holder_of(f"projects/p/locations/z/{job.uses}") == job.id, "it has the lease, not a user's hold"

    def hold(self) -> None:
        name = self.cloud.choose.choice(NAMES)
        until = self.cloud.now + self.cloud.choose.choice([10, 100, 1000])
        if not machines.hold([f"projects/p/locations/z/{name}"], until=until):
            assert all(job.uses != name for job in self.jobs), "a TPU is held that a job uses"

    def run(self, steps: int) -> None:
        for count in range(steps * 2):
            ending = count >= steps
            if ending:
                self.cloud.crashes = self.cloud.errors = self.unsaved = 0
                for name in NAMES:
                    self.cloud.become(name, "READY")
            active = [job for job in self.jobs if not ending or job.saved]
            if not active:
                break
            job = min(active, key=lambda one: one.due)
            if ending:
                job.uses, job.hook = "", "release"
            self.cloud.advance(job.due)
            if not ending and self.cloud.choose.random() < 0.02:
                self.hold()
            job.step()
        assert [job.saved for job in self.jobs if job.saved] == []


@pytest.mark.system
@settings(max_examples=max(25, settings().max_examples // 4))  # each takes a second on a slow machine
@given(seed=st.integers(0, 2**32))
def test_two_jobs_never_hold_one_tpu_and_nothing_is_left(seed):
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as home:
        patch.setenv("TPUX_HOME", home)
        patch.setenv("TPUX_USER", "ann")
        walk = Walk(seed)
        cloud = walk.cloud
        clock = SimpleNamespace(time=lambda: cloud.now)
        patch.setattr(gcp_request.RequestContext, "api", cloud)
        patch.setattr(gcp_request, "now", lambda: cloud.now)
        patch.setattr(borrowing.random, "uniform", cloud.choose.uniform)
        patch.setattr("tpux_gcp.login._write", lambda *_: None)  # there is no directory
        patch.setattr("tpux_pool.allocator.Api", lambda _: cloud)
        patch.setattr("tpux_pool.shared.list_tpus", lambda *_: (cloud.list(), []))
        patch.setattr("tpux_pool.shared.registered", lambda: [Registered(name, "z", "p", name) for name in NAMES])
        for module in ("tpux_pool.allocator.time", "tpux_pool.queue.time", "tpux.store.leases.time"):
            patch.setattr(module, clock)
        jobs = {job.id for job in walk.jobs}
        patch.setattr("tpux.store.leases.is_active", lambda job: job in jobs)
        patch.setattr("tpux_pool.queue.machines.is_active", lambda job: job in jobs)
        walk.run(300)
        cloud.advance(cloud.now + 1000)
        assert all(machines.holder_of(f"projects/p/locations/z/{name}") in {"", machines.HOLD} for name in NAMES)
        assert [claims_in(labels) for labels in cloud.labels.values()] == [{}, {}]
