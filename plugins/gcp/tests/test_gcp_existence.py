"""Whether a TPU exists is asked with two calls of the API; it may appear, and its creation end, between any of them."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from tpux import ProvisionRequest
from tpux_gcp.errors import CloudError, Problem
from tpux_gcp.existence import INVISIBLE_FOR, UNANSWERED_FOR, Absent, Exists, MayAppear, look_up
from tpux_gcp.request import RequestContext, SavedState
from tpux_gcp.resource import Node, Operation, TpuResource
from tpux_gcp.section import GcpTpuSection

NEVER, NOW = 99, 10_000.0
TPU = TpuResource.from_node(Node("t", "z", "CREATING"))


class Cloud:
    """The API. A TPU appears before its `appears`-th call, and the operation of its creation ends before `ends`."""

    def __init__(self, appears: int, ends: int, *, code: int = 0, known: bool = True) -> None:
        self.appears, self.ends, self.code, self.known = appears, ends, code, known
        self.calls: list[str] = []

    def _call(self, method: str) -> int:
        self.calls.append(method)
        return len(self.calls)

    @property
    def exists(self) -> bool:
        return self.appears <= len(self.calls)

    @property
    def running(self) -> bool:
        return self.ends > len(self.calls)

    def tpu(self, *_: object, **__: object) -> TpuResource | None:
        return TPU if self.appears <= self._call("tpu") else None

    def operation(self, _: str) -> Operation | None:
        if self.ends > self._call("operation"):
            return Operation(done=False)
        return Operation(done=True, code=self.code, message="no more capacity") if self.known else None

    def running_creation(self, *_: object) -> str:
        return "operations/1" if self.ends > self._call("list") else ""


@pytest.fixture
def ask(monkeypatch):
    def ask(cloud: Cloud, **saved: object):
        state = SavedState(**{"project": "p", "endpoint": "http://e", "name": "t", "slices": 1, "zone": "z", **saved})
        request = ProvisionRequest("t", GcpTpuSection(allocation_mode="tpu-vm"), None, {}, (), Path())
        monkeypatch.setattr(RequestContext, "api", cloud)
        return look_up(RequestContext(request, state, queue=False, now=NOW))

    return ask


STATES = [
    {"operation": "operations/1"},
    {"operation": "operations/1", "absent_since": NOW - INVISIBLE_FOR},
    {"sent_at": NOW - 1},
    {"sent_at": NOW - UNANSWERED_FOR},  # it takes effect no more, unless it has begun
    {"operation": "operations/1", "observed_state": "node t is CREATING"},
]


@pytest.mark.parametrize("saved", STATES, ids="-".join)
@pytest.mark.parametrize("code", [0, 8], ids=["succeeds", "fails"])
@pytest.mark.parametrize("known", [True, False], ids=["known", "forgotten"])
def test_absent_is_never_said_of_what_exists_or_is_being_created(ask, saved, code, known):
    for appears, ends in itertools.product([1, 2, 3, 4, NEVER], repeat=2):
        if appears > ends and (not code or appears != NEVER):
            continue  # a TPU appears while it is created, also if that fails later, as with a preemption
        if "observed_state" in saved and appears not in {1, NEVER}:
            continue  # it was deleted
        cloud = Cloud(appears, ends, code=code, known=known)
        _, found = ask(cloud, **saved)
        if isinstance(found, Absent):
            assert not cloud.exists, (appears, ends, cloud.calls)
            assert not cloud.running, (appears, ends, cloud.calls)
        elif isinstance(found, Exists):
            assert cloud.exists


def test_the_answers(ask):
    gone = {"appears": NEVER, "ends": 1}
    assert ask(Cloud(1, 1))[1] == Exists(TPU)
    assert ask(Cloud(**gone))[1] == Absent()  # nothing was sent
    _, found = ask(Cloud(NEVER, NEVER), operation="operations/1")
    assert isinstance(found, MayAppear)
    assert found.ends_within is None
    _, found = ask(Cloud(**gone, code=8), operation="operations/1")
    assert isinstance(found, Absent)
    assert found.failure is not None
    assert found.failure.kind == "stockout"
    context, found = ask(Cloud(**gone), operation="operations/1")
    assert (found.ends_within, context.saved.absent_since) == (INVISIBLE_FOR, NOW)
    _, found = ask(Cloud(**gone), sent_at=NOW - 100)
    assert found.ends_within == UNANSWERED_FOR - 100
    context, found = ask(Cloud(**gone), sent_at=NOW + 7200)  # the clock was set back
    assert (found.ends_within, context.saved.sent_at) == (UNANSWERED_FOR, NOW)
    context, _ = ask(Cloud(NEVER, NEVER), sent_at=NOW - UNANSWERED_FOR)
    assert context.saved.operation == "operations/1"


@pytest.mark.parametrize("method", ["tpu", "operation", "running_creation"])
def test_a_call_that_fails_is_no_answer(ask, monkeypatch, method):
    def fail(*_: object, **__: object) -> None:
        raise CloudError(Problem("transient", "no answer"))

    cloud = Cloud(NEVER, 1)
    monkeypatch.setattr(cloud, method, fail)
    with pytest.raises(CloudError):
        ask(cloud, **({"sent_at": NOW - UNANSWERED_FOR} if method == "running_creation" else {"operation": "o"}))
