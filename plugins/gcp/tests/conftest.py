"""A driver that calls an allocator as core does: one step, save its state, wait, repeat."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from tpux import Denied, Job, JsonValue, MachineStatus, ProvisionRequest, Ready, Released, Waiting
from tpux.api import machines
from tpux_emulator.emulator import Emulator
from tpux_emulator.testing import tpu_emulators
from tpux_gcp import api, login
from tpux_gcp import request as request_module
from tpux_gcp.allocators import Allocator, queued_resources, tpu_vm
from tpux_gcp.section import GcpTpuSection

__all__ = ["tpu_emulators"]
Answer = Ready | Waiting | Denied | Released
_numbers = itertools.count(1)
_seen: dict[str, int] = {}  # by the emulator's address: each numbers its own requests
QUICK = {
    "node.CREATING": 0.05, "node.DELETING": 0.05, "node.STOPPING": 0.05, "node.STARTING": 0.05, "node.patch": 0.02,
    "queued-resource.CREATING": 0.02, "queued-resource.ACCEPTED": 0.02, "queued-resource.WAITING_FOR_RESOURCES": 0.02,
    "queued-resource.PROVISIONING": 0.02, "queued-resource.SUSPENDING": 0.05, "queued-resource.DELETING": 0.02,
    "queued-resource.retry": 0.1,
}  # fmt: skip


@pytest.fixture(scope="session")
def emulator(tpu_emulators: Callable[..., Emulator]) -> Emulator:
    return tpu_emulators(workers=False, delays=QUICK)


@pytest.fixture
def cloud(emulator: Emulator, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Emulator]:
    """The emulator without faults, isolated from this machine's gcloud configuration."""
    for name in ("GOOGLE_CLOUD_PROJECT", "CLOUDSDK_CORE_PROJECT", "CLOUDSDK_COMPUTE_ZONE", "TPUX_CLOCK_RATE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path / "gcloud"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TPUX_HOME", str(tmp_path / "tpux"))
    monkeypatch.setenv("TPUX_USER", "Ann.Lee")
    monkeypatch.setenv("TPUX_GCP_ENDPOINT", emulator.url)
    monkeypatch.setattr(api, "RETRY_DEADLINE", 0.3)
    api._throttled_until.clear()
    yield emulator
    emulator.clear()
    emulator.change(delays=QUICK, project_metadata={}, reservations=None, future=None, disks=None)


def last_number(cloud: Emulator) -> int:
    """Return the number of the last request that the emulator received."""
    seen = _seen.get(cloud.url, 0)
    _seen[cloud.url] = max([seen, *(e.number for e in cloud.requests_since(seen))])
    return _seen[cloud.url]


@dataclass
class Driver:
    """A job that calls an allocator; `at` is the time that both see."""

    cloud: Emulator
    allocator: Allocator
    tpu: GcpTpuSection
    job: str
    directory: Path
    keys: tuple[str, ...] = ()
    labels: dict[str, str] = field(default_factory=dict)
    saved_state: dict[str, object] = field(default_factory=dict)
    at: float = 1_000_000.0
    messages: list[str] = field(default_factory=list)
    start: int = 0
    resolved: dict[str, JsonValue] = field(default_factory=dict)
    name: str = ""
    previous_owners: tuple[dict[str, str], ...] = ()

    def __post_init__(self) -> None:
        self.labels = self.labels or {"tpux-store": machines.store_id(), "tpux-user": "Ann.Lee", "tpux-job": self.job}
        self.start = last_number(self.cloud)
        job = Job(self.job, "Ann.Lee", "store", self.directory, {"tpu": self.tpu})
        self.resolved = self.allocator.resolve(job=job)

    @property
    def request(self) -> ProvisionRequest:
        name = self.name or self.tpu.name or f"train-{self.job}"
        saved_state = json.loads(json.dumps(self.saved_state))  # as saved on disk
        return ProvisionRequest(
            name, self.tpu, None, self.labels, self.keys, self.directory, saved_state, resolved=self.resolved,
            previous_owners=self.previous_owners,
        )  # fmt: skip

    def step(self) -> Answer:
        """Take one step of provisioning and save its state."""
        return self._kept(self.allocator.provision(request=self.request))

    def _kept(self, answer: Answer) -> Answer:
        if isinstance(answer, (Ready, Waiting)) and answer.saved_state is not None:
            self.saved_state = dict(answer.saved_state)
        if isinstance(answer, Waiting):
            self.messages.append(answer.why)
        return answer

    def pause(self, answer: Answer) -> None:
        assert isinstance(answer, Waiting)
        assert answer.poll_after >= 0
        self.at += answer.poll_after
        if answer.poll_after:
            time.sleep(0.01)  # the emulator's clock runs in real time

    def run(self, hook: Callable[[], Answer] | None = None, *, steps: int = 400, until: str = "") -> Answer:
        """Take steps until the answer is final, or until a message contains `until`."""
        for _ in range(steps):
            answer = (hook or self.step)()
            if not isinstance(answer, Waiting):
                return answer
            if until and until in answer.why:
                return answer
            self.pause(answer)
        raise AssertionError(f"no end after {steps} steps: {self.messages[-3:]}")

    def ready(self) -> Ready:
        answer = self.run()
        assert isinstance(answer, Ready), answer
        return answer

    def denied(self) -> Denied:
        answer = self.run()
        assert isinstance(answer, Denied), answer
        return answer

    def release_step(self) -> Answer:
        return self._kept(self.allocator.release(request=self.request))

    def release(self) -> Released:
        """Release the machines; the next request begins without a saved state, as in core."""
        answer = self.run(self.release_step)
        assert isinstance(answer, Released), answer
        self.saved_state = {}
        return answer

    def take_over(self, other: Driver) -> None:
        """Hold the machines of another job, which it does not release any more; their labels still name it."""
        self.name, self.saved_state, self.previous_owners = (
            other.request.name,
            other.saved_state,
            (*other.previous_owners, other.labels),
        )

    def inspect(self) -> MachineStatus:
        return self.allocator.inspect(request=self.request)

    # --- what the cloud received, and what exists -----------------------------------------------

    def requests(self, method: str = "") -> list[object]:
        return [e for e in self.cloud.requests_since(self.start) if e.method.startswith(method)]

    def nodes(self) -> list[str]:
        """Return the existing nodes with this job's TPU name."""
        return self._there("nodes")

    def queued(self) -> list[str]:
        return self._there("queuedResources")

    def _there(self, kind: str) -> list[str]:
        mine = [item["name"].split("/") for item in self.cloud.status()[kind]]
        stem = self.request.name
        return [f"{path[3]}/{path[5]}" for path in mine if path[5] == stem or path[5].startswith(f"{stem}-")]


@pytest.fixture
def drive(cloud: Emulator, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Driver]:
    """Return `drive(zone=..., ...)`, which makes a job with this `tpu` section, by default a v4-8 of tpu-vm."""
    drivers: list[Driver] = []

    def make(*, mode: str = "tpu-vm", job: str = "", keys: tuple[str, ...] = (), **tpu: object) -> Driver:
        given = {"allocation_mode": mode, "accelerator": "v4-8", "zone": "us-central2-b", **tpu}
        allocator = tpu_vm if mode == "tpu-vm" else queued_resources
        section = GcpTpuSection.model_validate(given)
        driver = Driver(cloud, allocator, section, job or f"{next(_numbers):06d}", tmp_path, keys)
        drivers.append(driver)
        return driver

    for module in (request_module, login):
        monkeypatch.setattr(module, "now", lambda: max((driver.at for driver in drivers), default=1_000_000.0))
    return make


class GoogleApis:
    """Other APIs of Google's on loopback, for the commands that use its client library.

    Attributes:
        answers: what the test has set, by the method and path: the JSON, or a function of the query and the body. Any
            other path is refused with 403.
        requests: the methods and URLs that were requested.
    """

    def __init__(self) -> None:
        self.answers: dict[str, Mapping[str, object] | Callable[..., Mapping[str, object]]] = {}
        self.requests: list[str] = []


@pytest.fixture
def google_apis(monkeypatch: pytest.MonkeyPatch) -> Iterator[GoogleApis]:
    """A server that speaks the JSON of Google's APIs, at the address of `$TPUX_GCP_ENDPOINT`."""
    apis = GoogleApis()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            apis.requests.append(f"{self.command} {self.path}")
            url = urlsplit(self.path)
            answer = apis.answers.get(f"{self.command} {url.path}")
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else {}
            if callable(answer):
                answer = answer({key: values[0] for key, values in parse_qs(url.query).items()}, body)
            refused = {"error": {"code": 403, "message": "the API has not been used in project p"}}
            content = json.dumps(refused if answer is None else answer).encode()
            self.send_response(403 if answer is None else 200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_POST = do_GET  # noqa: N815  (a name of http.server)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("TPUX_GCP_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    yield apis
    server.shutdown()
    server.server_close()
