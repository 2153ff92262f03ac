"""Pods that do not start: what passes is waited for with its reason, what never succeeds is denied with a hint."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fake_api import TPU, Api

from tpux import Denied, JsonValue, ProvisionRequest, Waiting
from tpux_gke import allocator
from tpux_gke.manifest import jobset

IMAGE = 'Failed to pull image "python": rpc error: code = '
RESOLVE = 'failed to pull and unpack image "docker.io/library/python": failed to resolve reference "python": '


def event(message: str, count: int = 1, reason: str = "Failed", last: str = "") -> JsonValue:
    """Return an event of the pod."""
    return {
        "involvedObject": {"name": "pod"},
        "reason": reason,
        "message": message,
        "count": count,
        "lastTimestamp": last,
    }


def pulls(message: str, count: int = 1, last: str = "") -> list[JsonValue]:
    """Return the events of so many failed pulls: the kubelet says each of them in four."""
    return [
        event(message, count, last=last),
        event("Error: ErrImagePull", count),
        event('Back-off pulling image "python"', 5 * count, "BackOff"),
        event("Error: ImagePullBackOff", 5 * count),
    ]


def pod(**status: JsonValue) -> JsonValue:
    """Return a pod of the first slice."""
    return {"metadata": {"name": "pod", "uid": "p"}, "status": status}


def waits(reason: str, message: str = "") -> JsonValue:
    """Return a pod whose container waits."""
    state: JsonValue = {"waiting": {"reason": reason, "message": message}}
    return pod(phase="Pending", containerStatuses=[{"name": "main", "state": state}])


@pytest.fixture
def started(api: Api, request_: ProvisionRequest) -> ProvisionRequest:
    """Return a request whose JobSet exists, with a pod that pulls its image."""
    api.jobset = jobset(request_, TPU)
    api.pods = [waits("ImagePullBackOff", 'Back-off pulling image "python"')]
    return request_


@pytest.mark.parametrize(
    ("said", "hint"),
    [
        (f"NotFound desc = {RESOLVE}docker.io/library/python:latest: not found", "there is no such image"),
        (f"Unknown desc = {RESOLVE}failed to authorize: unexpected status: 401 Unauthorized", "imagePullSecrets"),
        (f"Unknown desc = {RESOLVE}unexpected status from HEAD request: 403 Forbidden", "artifactregistry.reader"),
        ("Unknown desc = Error response from daemon: pull access denied for python", "imagePullSecrets"),
        ("NotFound desc = no match for platform in manifest: not found", "has no variant"),
    ],
)
def test_pull_that_never_succeeds(api: Api, started: ProvisionRequest, said: str, hint: str) -> None:
    """It is denied once the node has failed three times, and not at the first for what is said beside it."""
    for count in (1, 2):
        api.events = pulls(f"{IMAGE}{said}", count)
        answer = allocator.provision(started)
        assert isinstance(answer, Waiting)
        assert said in answer.why
    api.events = pulls(f"{IMAGE}{said}", 3)
    denied = allocator.provision(started)
    assert isinstance(denied, Denied)
    assert said in denied.failure.evidence
    assert hint in denied.failure.hint


@pytest.mark.parametrize(
    "said",
    [
        f"Unknown desc = {RESOLVE}unexpected status: 429 Too Many Requests - toomanyrequests: pull rate limit",
        f"Unknown desc = {RESOLVE}failed to do request: dial tcp 1.2.3.4:443: i/o timeout",
        f"DeadlineExceeded desc = {RESOLVE}context deadline exceeded",
        f"Unknown desc = {RESOLVE}failed to authorize: failed to fetch token: 503 Service Unavailable",
        f"Unknown desc = {RESOLVE}denied: Quota exceeded for quota metric 'Requests per project per region'",
        f"Unknown desc = {RESOLVE}dial tcp: lookup europe-docker.pkg.dev: no such host",
        "Unknown desc = something that nobody has seen before",
    ],
)
def test_pull_that_may_succeed(api: Api, started: ProvisionRequest, said: str) -> None:
    """It is waited for, with what the node says, whatever came before."""
    api.events = [
        *pulls(f"{IMAGE}NotFound desc = not found", 5, "2026-01-01T00:00:00Z"),
        *pulls(f"{IMAGE}{said}", 30, "2026-01-01T00:01:00Z"),
    ]
    answer = allocator.provision(started)
    assert isinstance(answer, Waiting)
    assert said in answer.why


def test_no_right_to_list_events(api: Api, started: ProvisionRequest) -> None:
    """Nothing is known to be final without them."""
    api.events = None
    answer = allocator.provision(started)
    assert isinstance(answer, Waiting)
    assert "you may not list events" in answer.why


def test_container_that_cannot_be_made(api: Api, started: ProvisionRequest) -> None:
    """A Secret that does not exist, for example: what is said of pulls does not count."""
    api.pods = [waits("CreateContainerConfigError", 'secret "key" not found')]
    api.events = [*pulls(f"{IMAGE}Unknown desc = i/o timeout", 5), event('Error: secret "key" not found', 2)]
    assert isinstance(allocator.provision(started), Waiting)
    api.events = [event('Error: secret "key" not found', 3)]
    denied = allocator.provision(started)
    assert isinstance(denied, Denied)
    assert 'secret "key" not found' in denied.failure.evidence
    assert "tpu.pod" in denied.failure.hint


def ended(code: int, reason: str = "Error", message: str = "", **status: JsonValue) -> JsonValue:
    """Return a pod whose container has ended."""
    end: JsonValue = {"terminated": {"exitCode": code, "reason": reason, "message": message}}
    return pod(phase="Failed", containerStatuses=[{"name": "main", "state": end}], **status)


def ends(api: Api, request: ProvisionRequest, steps: int, kind: str = "Failed") -> object:
    """Let each JobSet fail, or complete, as soon as it is created; return the last answer."""
    answer: object = None
    for _ in range(steps):
        answer = allocator.provision(request)
        if not isinstance(answer, Waiting):
            break
        request = request if answer.saved_state is None else replace(request, saved_state=answer.saved_state)
        if api.jobset is not None:
            condition: JsonValue = {"type": kind, "status": "True", "reason": "R", "message": f"it has {kind}"}
            api.jobset["status"] = {"conditions": [condition]}
    return answer


@pytest.mark.parametrize(
    "one",
    [
        ended(128, "StartError", 'exec: "/bin/sh": stat /bin/sh: no such file or directory'),
        ended(127),
        ended(137, "OOMKilled"),
    ],
)
def test_image_whose_container_ends(api: Api, request_: ProvisionRequest, one: JsonValue) -> None:
    """An image without a shell, for example, is tried three times, not for ever."""
    api.pods = [one]
    denied = ends(api, request_, 20)
    assert isinstance(denied, Denied)
    assert "exit code" in denied.failure.evidence
    assert "sh, coreutils" in denied.failure.hint
    assert api.creations == 3


def test_image_whose_container_does_nothing(api: Api, request_: ProvisionRequest) -> None:
    """A `tpu.pod` with another command, for example, lets each JobSet complete."""
    denied = ends(api, request_, 20, "Completed")
    assert isinstance(denied, Denied)
    assert "it has Completed" in denied.failure.evidence
    assert api.creations == 3


@pytest.mark.parametrize(
    "one",
    [
        ended(1, conditions=[{"type": "DisruptionTarget", "status": "True"}]),
        ended(137),
        ended(1, reason="x") | {"status": {"reason": "Terminated"}},  # type: ignore[operator]
    ],
)
def test_pods_that_are_lost_before_they_are_ready(api: Api, request_: ProvisionRequest, one: JsonValue) -> None:
    """Nodes that go are no fault of the image: the JobSet is created again each time."""
    api.pods = [one]
    assert isinstance(ends(api, request_, 20), Waiting)
    assert api.creations > 3
