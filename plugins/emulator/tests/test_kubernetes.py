"""The Kubernetes API: objects, JobSet, Kueue, nodes and what goes wrong with them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest
from emulator_kubernetes import (
    EVENTS,
    JOBSETS,
    PODS,
    Api,
    condition,
    jobset,
    reason,
    until,
)

from tpux_emulator.emulator import Emulator

pytestmark = pytest.mark.process
QUICK = {"schedule": 0.01, "start": 0.01, "admission": 0.02, "scale_up": 0.02, "retry": 0.1}
DEFAULTS = {"node_pools": None, "images": ["*"], "denied": [], "queue": "tpu-queue", "quota": 1024,
            "queue_stopped": False, "jobset": True}  # fmt: skip


@pytest.fixture(scope="module")
def _cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    with Emulator(tmp_path_factory.mktemp("kubernetes"), workers=False, kubernetes=True) as cloud:
        yield cloud


@pytest.fixture
def api(_cluster: Emulator) -> Iterator[Api]:
    """The API of a cluster that tests share; faults and settings are reset, and JobSets deleted, after each."""
    _cluster.change_kubernetes(**DEFAULTS, **QUICK)
    api = Api(_cluster)
    yield api
    _cluster.clear()
    for each in api.items(JOBSETS):
        api.ask("DELETE", f"{JOBSETS}/{each['metadata']['name']}")
    for each in api.items(PODS):
        api.ask("DELETE", f"{PODS}/{each['metadata']['name']}", params={"gracePeriodSeconds": "0"})
    until(lambda: not api.items(PODS))


def test_a_jobset_becomes_pods_on_one_pool_a_slice(api: Api) -> None:
    made = api.create(jobset("two", slices=2))
    pods = api.running("two", 4)
    assert [re.sub(r"-.....$", "", pod["metadata"]["name"]) for pod in pods] == [
        "two-slice-0-0", "two-slice-0-1", "two-slice-1-0", "two-slice-1-1"]  # fmt: skip
    nodes = {node["metadata"]["name"]: node["metadata"]["labels"] for node in api.items("/api/v1/nodes")}
    pools = [nodes[pod["spec"]["nodeName"]]["cloud.google.com/gke-nodepool"] for pod in pods]
    assert pools[0] == pools[1] != pools[2] == pools[3]
    assert {pod["metadata"]["labels"]["jobset.sigs.k8s.io/jobset-uid"] for pod in pods} == {made["metadata"]["uid"]}
    env = {each["name"]: each["value"] for each in pods[3]["spec"]["containers"][0]["env"]}
    assert env == {
        "TPU_WORKER_ID": "1", "TPU_WORKER_HOSTNAMES": "two-slice-1-0.two,two-slice-1-1.two",
        "MEGASCALE_NUM_SLICES": "2", "MEGASCALE_SLICE_ID": "1", "MEGASCALE_COORDINATOR_ADDRESS": "two-slice-0-0.two",
    }  # fmt: skip
    until(lambda: api.get("two")["status"]["replicatedJobsStatus"][0]["ready"] == 2)


def test_deletion_terms_the_pods_and_ends_with_the_jobset(api: Api) -> None:
    api.create(jobset("gone"))
    uid = api.running("gone", 2)[0]["metadata"]["uid"]
    other = api.ask("DELETE", f"{JOBSETS}/gone", json={"preconditions": {"uid": "another"}})
    assert (other.status_code, other.json()["reason"]) == (409, "Conflict")
    notice = api.cloud.home.pods / uid / "home/notice"
    answer = api.ask("DELETE", f"{JOBSETS}/gone", json={"propagationPolicy": "Foreground"})
    assert answer.json()["metadata"]["finalizers"] == ["foregroundDeletion"]
    until(notice.exists)
    until(lambda: api.ask("GET", f"{JOBSETS}/gone").status_code == 404)
    assert api.pods("gone") == []


def test_a_pod_that_ignores_sigterm_is_killed_after_its_grace(api: Api) -> None:
    api.create(jobset("stubborn", command="trap '' TERM; while :; do sleep 0.05; done", hosts=1, topology="2x2"))
    pod = api.running("stubborn", 1)[0]["metadata"]["name"]
    api.ask("DELETE", f"{PODS}/{pod}", params={"gracePeriodSeconds": "1"})
    until(lambda: api.ask("GET", f"{PODS}/{pod}").status_code == 404)


def test_programs_end_the_jobset(api: Api) -> None:
    api.create(jobset("good", command="exit 0"))
    api.create(jobset("bad", command="test $TPU_WORKER_ID = 0 || exit 3; sleep 60"))
    until(lambda: api.get("good")["status"].get("terminalState") == "Completed")
    failed = until(lambda: (now := api.get("bad"))["status"].get("terminalState") == "Failed" and now)
    assert reason(failed, "Failed") == "FailedJobs"
    ends = [
        each["status"]["containerStatuses"][0]["state"]
        for each in api.pods("bad")
        if each["status"]["phase"] == "Failed"
    ]
    assert [end["terminated"]["exitCode"] for end in ends] == [3]


def test_restarts(api: Api) -> None:
    api.create(jobset("again", command="exit 1", policy={"maxRestarts": 2, "restartStrategy": "BlockingRecreate"}))
    over = until(lambda: (now := api.get("again"))["status"].get("terminalState") and now)
    assert (over["status"]["restarts"], reason(over, "Failed")) == (2, "ReachedMaxRestarts")
    rules = [{"action": "FailJobSet", "onJobFailureReasons": ["BackoffLimitExceeded"]}]
    api.create(jobset("never", command="exit 1", policy={"maxRestarts": 2, "rules": rules}))
    over = until(lambda: (now := api.get("never"))["status"].get("terminalState") and now)
    assert (over["status"]["restarts"], reason(over, "Failed")) == (0, "FailJobSetFailurePolicyAction")


def test_lists_have_selectors_and_pages(api: Api) -> None:
    for name in ("a", "b", "c"):
        api.create(jobset(name, labels={"team": name}))
    assert [each["metadata"]["name"] for each in api.items(JOBSETS, labelSelector="team=b")] == ["b"]
    assert [each["metadata"]["name"] for each in api.items(JOBSETS, labelSelector="team!=b")] == ["a", "c"]
    first = api.ask("GET", JOBSETS, params={"limit": "2"}).json()
    assert first["metadata"]["remainingItemCount"] == 1
    rest = api.ask("GET", JOBSETS, params={"limit": "2", "continue": first["metadata"]["continue"]}).json()
    assert [each["metadata"]["name"] for each in first["items"] + rest["items"]] == ["a", "b", "c"]
    assert "continue" not in rest["metadata"]
    api.cloud.kubernetes_fault("expire-lists")
    late = api.ask("GET", JOBSETS, params={"continue": first["metadata"]["continue"]})
    assert (late.status_code, late.json()["reason"]) == (410, "Expired")


def test_merge_patch(api: Api) -> None:
    api.create(jobset("patched", labels={"a": "1", "b": "2"}))
    how = {"headers": {"Content-Type": "application/merge-patch+json"}}
    change = {"metadata": {"labels": {"a": None, "c": "3"}}}
    assert api.ask("PATCH", f"{JOBSETS}/patched", json=change, **how).json()["metadata"]["labels"] == {
        "b": "2",
        "c": "3",
    }
    frozen = api.ask("PATCH", f"{JOBSETS}/patched", json={"spec": {"failurePolicy": {"maxRestarts": 9}}}, **how)
    assert (frozen.status_code, frozen.json()["reason"]) == (422, "Invalid")
    stale = api.ask("PATCH", f"{JOBSETS}/patched", json={"metadata": {"resourceVersion": "1"}}, **how)
    assert stale.status_code == 409


@pytest.mark.parametrize(
    ("change", "status", "words"),
    [
        ({"spec": {"replicatedJob": []}}, 400, 'unknown field "spec.replicatedJob"'),
        ({"spec": {}}, 422, "spec.replicatedJobs: Field required"),
        ({"metadata": {"name": "Upper"}}, 422, "metadata.name"),
        ({"metadata": {"name": "x" * 60}}, 422, "too long"),
        ({"kind": "Job"}, 400, "do not match"),
    ],
)
def test_bad_objects(api: Api, change: dict[str, object], status: int, words: str) -> None:
    body = jobset("bad")
    spec = change.get("spec")
    merged = {**body, **change}
    if isinstance(spec, dict) and spec:
        merged["spec"] = {**body["spec"], **spec}
    if "metadata" in change:
        merged["metadata"] = {**body["metadata"], **change["metadata"]}  # type: ignore[dict-item]
    answer = api.ask("POST", JOBSETS, json=merged)
    assert answer.status_code == status
    assert words in answer.json()["message"]
    assert api.items(JOBSETS) == []


def test_one_name_once(api: Api) -> None:
    api.create(jobset("once"))
    again = api.ask("POST", JOBSETS, json=jobset("once"))
    assert (again.status_code, again.json()["reason"]) == (409, "AlreadyExists")
    nowhere = api.ask("POST", JOBSETS.replace("default", "elsewhere"), json=jobset("once"))
    assert nowhere.status_code == 404


def test_permissions(api: Api) -> None:
    api.cloud.change_kubernetes(denied=["create jobsets", "create pods/exec"])
    refused = api.ask("POST", JOBSETS, json=jobset("no"))
    assert (refused.status_code, refused.json()["reason"]) == (403, "Forbidden")
    review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview"}
    for sub, verb, allowed in (("exec", "create", False), ("log", "get", True)):
        asked = {"namespace": "default", "verb": verb, "resource": "pods", "subresource": sub}
        answer = api.ask("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
                         json={**review, "spec": {"resourceAttributes": asked}})  # fmt: skip
        assert answer.json()["status"]["allowed"] is allowed


def test_no_page_of_a_browser(api: Api) -> None:
    assert api.ask("POST", JOBSETS, json=jobset("evil"), headers={"Origin": "https://evil.example"}).status_code == 403


def test_kueue_queues_preempts_and_admits_again(api: Api) -> None:
    api.cloud.change_kubernetes(quota=8)
    queue = {"kueue.x-k8s.io/queue-name": "tpu-queue"}
    made = api.create(jobset("low", labels={**queue, "kueue.x-k8s.io/priority-class": "low"}))
    assert made["spec"]["suspend"] is True
    api.running("low", 2)
    api.create(jobset("same", labels={**queue, "kueue.x-k8s.io/priority-class": "low"}))
    waits = until(lambda: (now := api.workload("same"))["status"].get("conditions") and now)
    assert reason(waits, "QuotaReserved") == "Pending"
    assert "insufficient unused quota for google.com/tpu" in waits["status"]["conditions"][0]["message"]
    api.create(jobset("high", labels={**queue, "kueue.x-k8s.io/priority-class": "high"}))
    api.running("high", 2)
    lost = api.workload("low")
    assert reason(lost, "Evicted") == "Preempted"
    assert reason(lost, "Preempted") == "InClusterQueue"
    assert reason(api.get("low"), "Suspended") == "SuspendedJobs"
    assert api.pods("low") == []
    api.delete("high")
    api.running("low", 2)  # it was there before `same`
    assert condition(api.workload("low"), "Admitted") == "True"
    assert api.pods("same") == []


def test_kueue_takes_the_highest_priority_first(api: Api) -> None:
    api.cloud.change_kubernetes(quota=8)
    for name, priority in (("first", "high"), ("low", "low"), ("high", "high")):
        labels = {"kueue.x-k8s.io/queue-name": "tpu-queue", "kueue.x-k8s.io/priority-class": priority}
        api.create(jobset(name, labels=labels))
        until(lambda name=name: condition(api.workload(name), "QuotaReserved"))
    api.delete("first")
    api.running("high", 2)
    assert condition(api.workload("low"), "Evicted") == ""  # it was not admitted and then preempted


@pytest.mark.parametrize(
    ("settings", "queue", "words"),
    [
        ({}, "other", "LocalQueue other doesn't exist"),
        ({"queue_stopped": True}, "tpu-queue", "LocalQueue tpu-queue is stopped"),
        ({"quota": 4}, "tpu-queue", "request > maximum capacity (8 > 4)"),
    ],
)
def test_kueue_says_why_it_waits(api: Api, settings: dict[str, object], queue: str, words: str) -> None:
    api.cloud.change_kubernetes(**settings)  # type: ignore[arg-type]
    api.create(jobset("waits", labels={"kueue.x-k8s.io/queue-name": queue}))
    until(lambda: words in str(api.workload("waits")["status"].get("conditions")))
    assert api.pods("waits") == []


def test_kueue_evicts_by_command(api: Api) -> None:
    api.create(jobset("late", labels={"kueue.x-k8s.io/queue-name": "tpu-queue"}))
    before = {pod["metadata"]["uid"] for pod in api.running("late", 2)}
    api.cloud.kubernetes_fault("kueue-evict", jobset="late", reason="PodsReadyTimeout", requeue=0.5)
    until(lambda: not before & {pod["metadata"]["uid"] for pod in api.running("late", 2)})
    assert api.events("jobset-late")["EvictedDueToPodsReadyTimeout"] == "Exceeded the PodsReady timeout"
    assert condition(api.workload("late"), "Evicted") == "False"


def test_spot_preemption(api: Api) -> None:
    api.create(jobset("spot", slices=2, selector={"cloud.google.com/gke-spot": "true"}))
    until(lambda: len(api.pods("spot")) == 4)
    assert all("nodeName" not in pod["spec"] for pod in api.pods("spot"))  # they do not tolerate the taint
    api.delete("spot")
    tolerant = jobset("spot", slices=2, selector={"cloud.google.com/gke-spot": "true"})
    template = tolerant["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    template["tolerations"] = [{"key": "cloud.google.com/gke-spot", "operator": "Equal", "value": "true"}]
    api.create(tolerant)
    pods = api.running("spot", 4)
    victim, node = pods[1]["metadata"]["name"], pods[1]["spec"]["nodeName"]
    pool = api.ask("GET", f"/api/v1/nodes/{node}").json()["metadata"]["labels"]["cloud.google.com/gke-nodepool"]
    api.cloud.kubernetes_fault("preempt", pod=victim)
    until((api.cloud.home.pods / pods[1]["metadata"]["uid"] / "home/notice").exists)
    ended = until(lambda: (pod := api.ask("GET", f"{PODS}/{victim}").json())["status"]["phase"] == "Failed" and pod)
    assert ended["status"]["reason"] == "Terminated"
    assert reason(ended, "DisruptionTarget") == "TerminationByKubelet"
    until(lambda: "PodFailurePolicy" in str(api.get("spot")["status"]["conditions"]))
    labels = {"labelSelector": f"cloud.google.com/gke-nodepool={pool}"}
    until(lambda: api.items("/api/v1/nodes", **labels) == [])  # the whole slice


@pytest.mark.parametrize("fault", ["preempt", "host-error"])
def test_a_lost_node_takes_its_slice_and_the_jobset_comes_back_on_another(api: Api, fault: str) -> None:
    api.cloud.change_kubernetes(retry=0.5)  # so long the lost nodes are still there, as objects
    rules = [{"action": "RestartJobSetAndIgnoreMaxRestarts"}]
    api.create(jobset("back", slices=2, policy={"restartStrategy": "BlockingRecreate", "rules": rules}))
    pods = api.running("back", 4)
    before = {pod["spec"]["nodeName"] for pod in pods}
    api.cloud.kubernetes_fault(fault, pod=pods[0]["metadata"]["name"], notice=0.1)
    until(lambda: api.get("back")["status"]["restarts"] == 1)
    gone = {pod["spec"]["nodeName"] for pod in pods[:2]}
    until(lambda: not gone & {node["metadata"]["name"] for node in api.items("/api/v1/nodes")})
    after = api.running("back", 4)
    assert {pod["spec"]["nodeName"] for pod in after} <= {
        node["metadata"]["name"] for node in api.items("/api/v1/nodes")
    }
    assert len({pod["spec"]["nodeName"] for pod in after} & before) == 2  # the other slice's
    assert api.get("back")["status"]["restarts"] == 1


def test_maintenance_host_error_eviction_and_memory(api: Api) -> None:
    api.create(jobset("ill", slices=4, hosts=1, topology="2x2", policy={"maxRestarts": 99}))
    pods = api.running("ill", 4)
    names = [pod["metadata"]["name"] for pod in pods]
    api.cloud.kubernetes_fault("maintenance", pod=names[0])
    node = api.ask("GET", f"/api/v1/nodes/{pods[0]['spec']['nodeName']}").json()
    assert "cloud.google.com/impending-node-termination" in {taint["key"] for taint in node["spec"]["taints"]}
    assert node["metadata"]["labels"]["cloud.google.com/active-node-maintenance"] == "ONGOING"
    assert len(api.running("ill", 4)) == 4  # it has only been announced
    api.delete("ill")
    api.cloud.change_kubernetes(retry=60.0)  # the pod of a lost node goes with it, then: not before it is read
    found = {}
    for fault in ("host-error", "evict", "oom"):
        api.create(jobset("ill", hosts=1, topology="2x2"))
        pod = api.running("ill", 1)[0]
        api.cloud.kubernetes_fault(fault, pod=pod["metadata"]["name"])
        ended = until(lambda: (now := api.pods("ill")[0])["status"]["phase"] == "Failed" and now)
        state = ended["status"]["containerStatuses"][0]["state"]["terminated"]
        found[fault] = (
            ended["status"].get("reason"),
            reason(ended, "DisruptionTarget"),
            state["reason"],
            state["exitCode"],
        )
        api.delete("ill")
    assert found == {
        "host-error": ("NodeLost", "DeletionByTaintManager", "Error", 137),
        "evict": ("Evicted", "TerminationByKubelet", "Error", 137),
        "oom": (None, "", "OOMKilled", 137),
    }


def test_no_capacity(api: Api) -> None:
    rule = api.cloud.stockout()
    api.create(jobset("full", topology="4x4", hosts=4))
    until(lambda: "GCE_STOCKOUT" in api.events("full").get("FailedScaleUp", ""))
    pod = api.pods("full")[0]
    assert (pod["status"]["phase"], reason(pod, "PodScheduled")) == ("Pending", "Unschedulable")
    api.cloud.clear(rule)
    api.running("full", 4)


def test_fixed_pools(api: Api) -> None:
    labels = {"cloud.google.com/gke-tpu-accelerator": "tpu-v6e-slice", "cloud.google.com/gke-tpu-topology": "8x8"}
    api.cloud.change_kubernetes(node_pools=[{"name": "a", "labels": labels, "nodes": 2}])
    api.create(jobset("fits", topology="8x8"))
    api.create(jobset("not", topology="16x16"))
    api.running("fits", 2)
    until(lambda: "NotTriggerScaleUp" in api.events("not"))
    api.create(jobset("second", topology="8x8"))
    until(lambda: "FailedScheduling" in api.events("second"))
    api.delete("fits")
    api.running("second", 2)


def test_image_that_cannot_be_pulled(api: Api) -> None:
    api.cloud.change_kubernetes(images=["gcr.io/*"])
    api.create(jobset("image", image="nowhere/none:1"))
    pod = until(lambda: next((p for p in api.pods("image") if p["status"].get("containerStatuses")), None))
    assert pod["status"]["containerStatuses"][0]["state"]["waiting"]["reason"] in ("ErrImagePull", "ImagePullBackOff")
    name = pod["metadata"]["name"]
    until(
        lambda: any(
            e["reason"] == "Failed" and e["count"] >= 3
            for e in api.items(EVENTS)
            if e["involvedObject"]["name"] == name
        )
    )


def test_requests_that_fail(api: Api) -> None:
    api.cloud.throttle("kube.jobsets.list", count=1)
    answer = api.ask("GET", JOBSETS)
    assert (answer.status_code, answer.headers["Retry-After"], answer.json()["reason"]) == (429, "1", "TooManyRequests")
    api.cloud.lose("kube.jobsets.create", count=1)
    with pytest.raises(Exception, match=r"disconnected|reset"):
        api.ask("POST", JOBSETS, json=jobset("lost"))
    assert api.ask("POST", JOBSETS, json=jobset("lost")).status_code == 409
    api.cloud.error(401, "kube.*", count=1)
    assert api.ask("GET", PODS).json()["code"] == 401
    methods = {each.method for each in api.cloud.requests}
    assert {"kube.jobsets.list", "kube.jobsets.create", "kube.pods.list"} <= methods


def test_without_jobset_or_kueue(api: Api) -> None:
    """What is not served is answered with a line of text; objects go with their definition."""
    api.create(jobset("before"))
    api.running("before", 2)
    api.cloud.change_kubernetes(jobset=False, queue="")
    groups = {each["name"] for each in api.ask("GET", "/apis").json()["groups"]}
    assert groups == {"authorization.k8s.io"}
    for verb, path in (("POST", JOBSETS), ("GET", JOBSETS), ("GET", f"{JOBSETS}/before"), ("GET", "/apis/x/v1")):
        answer = api.ask(verb, path, **({"json": jobset("none")} if verb == "POST" else {}))
        assert (answer.status_code, answer.text) == (404, "404 page not found\n")
        assert answer.headers["content-type"].startswith("text/plain")
    until(lambda: not api.pods("before"))
    api.cloud.change_kubernetes(**DEFAULTS)
    assert api.items(JOBSETS) == []


def test_log(api: Api) -> None:
    api.create(jobset("says", command="echo one; echo two; exit 0", hosts=1, topology="2x2"))
    until(lambda: api.get("says")["status"].get("terminalState"))
    path = f"{PODS}/{api.pods('says')[0]['metadata']['name']}/log"
    assert api.ask("GET", path).text == "one\ntwo\n"
    assert api.ask("GET", path, params={"tailLines": "1"}).text == "two\n"


def test_killed_emulator_leaves_no_pods(make: Callable[..., Emulator]) -> None:
    cloud = make(kubernetes=True)
    api = Api(cloud)
    api.create(jobset("left"))
    api.running("left", 2)
    cloud.kill()
    cloud.start()
    assert Api(cloud).items(PODS) == []
    assert not list(cloud.home.pods.iterdir())
