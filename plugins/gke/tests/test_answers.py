"""Answers of an API that get lost, or come from something else: on a fake connection, without a cluster."""

from __future__ import annotations

import json
from dataclasses import replace

import httpx
import pytest
from fake_api import TPU, Api

from tpux import Denied, JsonValue, ProvisionRequest, Released, Waiting
from tpux_gke import allocator
from tpux_gke.client import ApiError, Client
from tpux_gke.cluster import Cluster
from tpux_gke.login import Credential
from tpux_gke.manifest import jobset


def after(request: ProvisionRequest, answer: object) -> ProvisionRequest:
    """Return the request with the state that an answer asks to be kept."""
    state = getattr(answer, "saved_state", None)
    return request if state is None else replace(request, saved_state=state)


@pytest.mark.parametrize("status", [0, 500, 504])
def test_lost_creation(api: Api, clock: list[float], request_: ProvisionRequest, status: int) -> None:
    """A release waits as long as the creation may take effect, and deletes what comes of it."""
    api.fails = [status]
    request = after(request_, allocator.provision(request_))
    for clock[0] in (1010.0, 1080.0):
        answer = allocator.release(request)
        assert isinstance(answer, Waiting)
        assert answer.ends_within == 1090 - clock[0]
        request = after(request, answer)
    api.jobset = jobset(request, TPU)
    assert isinstance(allocator.release(request), Waiting)
    assert not api.has_jobset()
    clock[0] = 1091.0
    assert allocator.release(request) == Released()


def test_lost_creation_that_was_repeated(api: Api, clock: list[float], request_: ProvisionRequest) -> None:
    """The one before may still follow the one that was answered."""
    api.fails = [0]
    request = after(request_, allocator.provision(request_))
    for _ in range(3):
        request = after(request, allocator.provision(request))
    assert api.has_jobset()
    request = after(request, allocator.release(request))
    assert not api.has_jobset()
    assert isinstance(allocator.release(request), Waiting)
    clock[0] = 1091.0
    assert allocator.release(request) == Released()


def test_interrupted_creation(api: Api, clock: list[float], request_: ProvisionRequest) -> None:
    """A process that has ended may have sent one, whether a release or a further step comes next."""
    interrupted = replace(request_, interrupted=True)
    request = after(interrupted, allocator.release(interrupted))
    clock[0] = 1089.0
    request = after(request, allocator.release(request))
    clock[0] = 1091.0
    assert allocator.release(request) == Released()
    api.fails = [429]
    request = replace(after(interrupted, allocator.provision(interrupted)), interrupted=False)
    assert isinstance(allocator.release(request), Waiting)


def test_refused_creation(api: Api, clock: list[float], request_: ProvisionRequest) -> None:
    """What was refused cannot take effect: nothing waits."""
    api.fails = [429]
    assert clock
    assert allocator.release(after(request_, allocator.provision(request_))) == Released()


def test_own_fault_is_said_until_it_is_stored(
    api: Api, request_: ProvisionRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A supervisor that is killed before it has stored the answer asks again; afterwards pods are created."""
    monkeypatch.setattr(allocator, "_is_resumed", lambda _: False)
    note = {"kind": "out-of-memory", "evidence": "OOMKilled", "hint": "h", "attempt": "0"}
    (request_.directory / "gke-fault.json").write_text(json.dumps(note))
    for interrupted in (False, True, True):
        answer = allocator.provision(replace(request_, interrupted=interrupted))
        assert isinstance(answer, Denied)
        assert answer.failure.kind == "out-of-memory"
    assert not api.has_jobset()
    assert isinstance(allocator.provision(request_), Waiting)
    assert api.has_jobset()


@pytest.mark.parametrize(
    "content",
    [{"login": "https://sso.example"}, {"kind": "Status", "status": "Success"}, {"kind": "PodList", "items": None}, []],
)
def test_answer_of_a_gateway(api: Api, request_: ProvisionRequest, content: JsonValue) -> None:
    """What is not an answer of Kubernetes says nothing: neither that machines are gone, nor that they are released."""
    api.gateway = content
    request = replace(request_, saved_state={"uid": "u", "pods": [["p", "pod", "node", 0]]})
    assert allocator.inspect(request).state == "unknown"
    assert isinstance(allocator.release(request), Waiting)
    assert isinstance(allocator.provision(request), Waiting)


@pytest.mark.parametrize(
    "page",
    [
        (404, "404 page not found\n"),
        (404, "<html>no such host</html>"),
        (403, "blocked by policy"),
        (400, "The plain HTTP request was sent to HTTPS port"),
        (403, '{"error": "VPN is off"}'),
    ],
)
def test_refusal_of_a_gateway(api: Api, request_: ProvisionRequest, page: tuple[int, str]) -> None:
    """It passes, such as when the VPN is on again: no JobSet is gone, or released, and no job has failed."""
    request = replace(request_, saved_state={"uid": "u", "pods": [["p", "pod", "node", 0]]})
    api.gateway_page = page
    assert allocator.inspect(request).state == "unknown"
    for answer in (allocator.release(request), allocator.provision(request_)):
        assert isinstance(answer, Waiting)
        assert "not an answer of Kubernetes" in answer.why
        assert "kubectl get jobsets" in answer.hint


def test_group_that_the_cluster_does_not_serve(api: Api) -> None:
    """Of this Kubernetes itself says no more than a line of text; its list of groups is the proof."""
    api.serves = ()
    client = allocator.client_of({})
    assert client.get("apis/jobset.x-k8s.io/v1alpha2") is None
    with pytest.raises(ApiError, match="no Kueue"):
        client.kueue()
    api.gateway_page = (404, "404 page not found\n")
    for call in (client.kueue, lambda: client.get("apis/jobset.x-k8s.io/v1alpha2")):
        with pytest.raises(ApiError, match="not an answer of Kubernetes"):
            call()


def of_uninstalled(request: ProvisionRequest) -> ProvisionRequest:
    """Return the request of a job that had a JobSet and a pod."""
    return replace(request, saved_state={"uid": "u", "pods": [["p", "pod", "node", 0]]})


def test_jobset_is_uninstalled(api: Api, request_: ProvisionRequest) -> None:
    """Its definition is gone, and with it all JobSets: the release ends once the garbage collector has the pods."""
    request, api.serves = of_uninstalled(request_), ()
    ending: dict[str, JsonValue] = {"name": "pod", "uid": "p", "deletionTimestamp": "2026-01-01T00:00:00Z"}
    api.left = [{"metadata": ending}]
    assert allocator.inspect(request).state == "gone"
    answer = allocator.release(request)
    assert isinstance(answer, Waiting)
    assert answer.why == "1 pods are ending, such as pod"
    api.left = ()
    assert allocator.release(request) == Released()
    denied = allocator.provision(request_)
    assert isinstance(denied, Denied)
    assert "does not serve jobset.x-k8s.io" in denied.failure.evidence
    assert "administrator" in denied.failure.hint


def test_jobset_is_uninstalled_and_pods_are_left(api: Api, request_: ProvisionRequest) -> None:
    """What the garbage collector does not find again is named, with the command that deletes it."""
    request, api.serves = of_uninstalled(request_), ()
    api.left = [{"metadata": {"name": "pod", "uid": "p"}}]
    for answer in (allocator.release(request), allocator.provision(request_)):
        assert isinstance(answer, Waiting)
        assert "1 pods are left of the JobSet train, which is gone" in answer.why
        selector = "tpux-store=s1,tpux-job=000007,tpux-token=abcd,jobset.sigs.k8s.io/jobset-name=train"
        assert answer.hint.endswith(f"kubectl --namespace default delete pods --selector {selector}")


def test_jobset_is_served_in_another_version_only(api: Api, request_: ProvisionRequest) -> None:
    """The JobSets are still there."""
    request, api.serves = of_uninstalled(request_), ("v1", "v1beta1")
    assert allocator.inspect(request).state == "unknown"
    answer = allocator.release(request)
    assert isinstance(answer, Waiting)
    assert "serves jobset.x-k8s.io in the versions v1, v1beta1, not v1alpha2" in answer.why
    assert allocator.client_of({}).get("apis/jobset.x-k8s.io/v1alpha2") is None


def test_creation_that_a_gateway_answers(api: Api, request_: ProvisionRequest) -> None:
    """It may take effect."""
    api.answers_creation = {"login": "https://sso.example"}
    answer = allocator.provision(request_)
    assert isinstance(answer, Waiting)
    assert "sent_at" in (answer.saved_state or {})


@pytest.mark.parametrize(
    ("asked", "least", "most"),
    [("20", 20, 25), ("86400", 60, 75), ("9" * 400, 60, 75), ("\N{SUPERSCRIPT TWO}", 10, 10), ("soon", 10, 10)],
)
def test_throttled(api: Api, request_: ProvisionRequest, asked: str, least: float, most: float) -> None:
    """What the API asks to wait is bounded, differs between clients, and is said."""
    api.throttled = asked
    request = replace(request_, saved_state={"uid": "u", "pods": [["p", "pod", "node", 0]]})
    answers = [allocator.provision(request_), allocator.release(request)]
    for answer in answers:
        assert isinstance(answer, Waiting)
        assert least <= answer.poll_after <= most
        assert "429: too many requests" in answer.why
        assert (f"tpux waits {least:.0f} s, as the API asks" in answer.why) == (most > 10)
    status = allocator.inspect(request)
    assert (status.state, least <= status.poll_after <= most) == ("unknown", True)
    if most > 10:
        assert len({allocator.inspect(request).poll_after for _ in range(5)}) > 1


@pytest.mark.parametrize(("uid", "is_named"), [("u1", True), ("u2", False)])
def test_labels_that_were_changed(api: Api, request_: ProvisionRequest, uid: str, is_named: bool) -> None:
    """A JobSet of the job without its labels is left, and named; another one of this name is nobody's concern."""
    api.jobset = {"kind": "JobSet", "metadata": {"name": "train", "uid": "u1", "labels": {"team": "other"}}}
    answer = allocator.release(replace(request_, saved_state={"uid": uid}))
    assert isinstance(answer, Released)
    assert ("kubectl --namespace default delete jobset train" in answer.left) == is_named
    assert api.has_jobset()


def test_orphan_that_two_clients_see(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is reported once, though jobs of two shells have a client of its cluster each."""
    orphan: dict[str, JsonValue] = {"metadata": {"name": "train", "uid": "u1", "labels": {"tpux-job": "000007"}}}
    api.gateway = {"kind": "JobSetList", "items": [orphan]}
    clients = [Client(Cluster("http://127.0.0.1:1", variables={"HOME": home})) for home in ("a", "b")]
    for client in clients:
        http = httpx.Client(transport=httpx.MockTransport(api), base_url="http://127.0.0.1:1")
        monkeypatch.setattr(client, "_http", http)
    monkeypatch.setattr(allocator, "client_of", lambda place: clients[place["number"]])
    monkeypatch.setattr("tpux.api.machines.store_id", lambda: "s1")
    monkeypatch.setattr("tpux.api.machines.is_active", lambda _: False)
    found = allocator.find_orphans([{"server": "x", "number": number} for number in (0, 1)])
    assert [one.name for one in found] == ["train"]


@pytest.mark.parametrize(
    ("cluster", "command"),
    [
        (
            Cluster("https://c", context="it's here", kubeconfig="/my configs/a", namespace="team"),
            """KUBECONFIG='/my configs/a' kubectl --context 'it'"'"'s here' --namespace team delete jobset train""",
        ),
        (
            Cluster("https://c", context="c", kubeconfig="/a:/b"),
            "KUBECONFIG=/a:/b kubectl --context c --namespace default delete jobset train",
        ),
        (
            Cluster("https://c", context="gke_p_europe-west4_c", google={"project": "p"}),
            (
                "gcloud container clusters get-credentials c --location europe-west4 --project p && "
                "kubectl --context gke_p_europe-west4_c --namespace default delete jobset train"
            ),
        ),
        (Cluster("https://c", in_pod=True, namespace="ml"), "kubectl --namespace ml delete jobset train"),
    ],
)
def test_command_of_an_orphan(api: Api, monkeypatch: pytest.MonkeyPatch, cluster: Cluster, command: str) -> None:
    """It names the cluster, and can be typed as it is."""
    api.gateway = {"kind": "JobSetList", "items": [{"metadata": {"name": "train", "labels": {"tpux-job": "7"}}}]}
    client = Client(cluster)
    monkeypatch.setattr(
        client, "_http", httpx.Client(transport=httpx.MockTransport(api), base_url="http://127.0.0.1:1")
    )
    monkeypatch.setattr(client.login, "credential", Credential)
    monkeypatch.setattr(allocator, "client_of", lambda _: client)
    monkeypatch.setattr("tpux.api.machines.store_id", lambda: "s1")
    monkeypatch.setattr("tpux.api.machines.is_active", lambda _: False)
    (found,) = allocator.find_orphans([{"server": "x"}])
    assert found.command == command
