"""A pool on the emulator, and jobs that take TPUs of it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tpux import Denied, Job, MachineStatus, ProvisionRequest, Ready, Released, Waiting
from tpux.api import machines
from tpux_emulator.emulator import Emulator
from tpux_emulator.testing import tpu_emulators
from tpux_gcp import request as gcp_request
from tpux_gcp.api import Api
from tpux_gcp.credentials import Place
from tpux_gcp.resource import Location
from tpux_pool.allocator import pool
from tpux_pool.section import PoolSection, PoolTpuSection
from tpux_testing import CommandLine

__all__ = ["tpu_emulators"]
LOCATION = Location("emulated", "us-central2-b")
QUICK = {f"node.{state}": 0.02 for state in ("CREATING", "DELETING", "STOPPING", "STARTING", "patch")}
SPEC = {"accelerator_type": "v4-8", "runtime_version": "tpu-ubuntu2204-base"}


@pytest.fixture(scope="session")
def emulator(tpu_emulators: Callable[..., Emulator]) -> Emulator:
    return tpu_emulators(workers=False, delays=QUICK)


@pytest.fixture
def cloud(emulator: Emulator, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Emulator]:
    """The emulator, without the TPUs that the test has made afterwards."""
    for name in ("GOOGLE_CLOUD_PROJECT", "CLOUDSDK_CORE_PROJECT", "CLOUDSDK_COMPUTE_ZONE", "TPUX_CLOCK_RATE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path / "gcloud"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TPUX_HOME", str(tmp_path / "tpux"))
    monkeypatch.setenv("TPUX_USER", "ann")
    monkeypatch.setenv("TPUX_GCP_ENDPOINT", emulator.url)
    monkeypatch.setenv("CLOUDSDK_COMPUTE_ZONE", "us-central2-b")
    yield emulator
    emulator.clear()
    api = Api(Place("emulated", endpoint=emulator.url))
    for node in api.nodes(Location("emulated", "-"), []):
        if (tpu := api.tpu(LOCATION, node.name, queue=False)) is not None:
            api.delete(LOCATION, tpu)
            emulator.wait_for(node.name, "GONE")


@pytest.fixture
def by_hand(cloud: Emulator) -> Callable[..., str]:
    """Return a function that makes a TPU without a job."""

    def make(name: str, **spec: object) -> str:
        Api(Place("emulated", endpoint=cloud.url)).create_node(LOCATION, name, {**SPEC, **spec})
        cloud.wait_for(name, "READY")
        return name

    return make


@pytest.fixture
def cli(cloud: Emulator, tpux_cli: CommandLine) -> CommandLine:
    """The command line, with the store and the cloud of the test."""
    names = ("TPUX_GCP_ENDPOINT", "CLOUDSDK_CONFIG", "CLOUDSDK_COMPUTE_ZONE", "TPUX_HOME", "TPUX_USER")
    tpux_cli.env |= {name: os.environ[name] for name in names}
    return tpux_cli


@dataclass
class PoolJob:
    """A job of this store that calls the allocator as core does."""

    id: str
    tpu: PoolTpuSection
    section: PoolSection
    directory: Path
    user: str = "ann"
    saved: dict[str, object] = field(default_factory=dict)
    said: list[str] = field(default_factory=list)
    pricing: str = ""

    def __post_init__(self) -> None:
        store = machines.store_id()
        events = Path(os.environ["TPUX_HOME"]) / "jobs" / self.user / self.id / "events.jsonl"
        events.parent.mkdir(parents=True)
        created = {"type": "created", "at": 1.0, "id": self.id, "user": self.user, "name": "x"}
        events.write_text(json.dumps(created) + "\n")
        self.labels = {"tpux-store": store, "tpux-user": self.user, "tpux-job": self.id}
        self.resolved = pool.resolve(job=Job(self.id, self.user, "store", self.directory, {"tpu": self.tpu}))

    @property
    def request(self) -> ProvisionRequest:
        saved = json.loads(json.dumps(self.saved))
        name = self.tpu.name or f"train-{self.id}"
        return ProvisionRequest(
            name, self.tpu, self.section, self.labels, (), self.directory, saved, resolved=self.resolved
        )

    def _kept(self, answer: Ready | Waiting | Denied | Released) -> Ready | Waiting | Denied | Released:
        if isinstance(answer, (Ready, Waiting)) and answer.saved_state is not None:
            self.saved = dict(answer.saved_state)
        if isinstance(answer, Waiting):
            self.said.append(answer.why)
        return answer

    def steps(self, number: int = 300) -> str:
        """Take steps until it has a TPU, whose name is returned, or waits for one: "" then."""
        for _ in range(number):
            answer = self._kept(pool.provision(request=self.request))
            if isinstance(answer, Ready):
                assert answer.allocation.borrowed
                self.pricing = answer.allocation.pricing
                return answer.allocation.name
            assert isinstance(answer, Waiting), answer
            if self.said[-1].startswith(("waits for", "no TPU of the pool")):
                return ""
        raise AssertionError(self.said[-5:])

    def inspect(self) -> MachineStatus:
        return pool.inspect(request=self.request)

    def release(self) -> None:
        for _ in range(300):
            if isinstance(self._kept(pool.release(request=self.request)), Released):
                self.saved = {}
                return
        raise AssertionError(self.said[-5:])


@pytest.fixture
def job(cloud: Emulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., PoolJob]:
    """Return a function that makes a job."""
    made: list[PoolJob] = []
    beginning = gcp_request.now()
    # Each look is a few seconds after the one before, so that claims settle at once.
    monkeypatch.setattr(gcp_request, "now", lambda: beginning + 5 * sum(len(one.said) for one in made))

    def make(pool: dict[str, object] | None = None, user: str = "ann", **tpu: object) -> PoolJob:
        given = {"allocation_mode": "pool", "accelerator": "v4-8", **tpu}
        number = f"{len(made) + 1:06}"
        section = PoolSection.model_validate(pool or {})
        made.append(PoolJob(number, PoolTpuSection.model_validate(given), section, tmp_path, user))
        return made[-1]

    return make
