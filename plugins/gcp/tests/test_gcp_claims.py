"""Two users with stores of their own borrow one TPU: a claim in its labels says whose turn it is."""

from __future__ import annotations

import heapq
import json
import random
import uuid
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tpux import Denied, HostUnreachableError, Job, ProvisionRequest, Ready, Released, Waiting
from tpux.model.sections import JobSection
from tpux_gcp import borrowing, provision, release, request
from tpux_gcp.allocators import inspect
from tpux_gcp.api import Api
from tpux_gcp.claims import (
    SETTLE,
    SETTLE_SLOWLY,
    SLOW,
    VALID_FOR,
    Claim,
    Note,
    claim_key,
    claim_of_another,
    claims_in,
    next_step,
    renewed,
    user_of,
)
from tpux_gcp.credentials import Place
from tpux_gcp.resource import Endpoint, Location, Node, TpuResource
from tpux_gcp.section import GcpTpuSection

LOCATION = Location("emulated", "us-central2-b")
SPEC = {"accelerator_type": "v4-8", "runtime_version": "tpu-ubuntu2204-base"}
EVE = {"tpux-store": "evesstore", "tpux-user": "eve", "tpux-job": "000007", "tpux-token": "abcd"}
KEY = "tpux-claim-evesstore"


@pytest.fixture
def tpu(cloud):
    """A TPU that was made by hand, and its API."""
    api = Api(Place("emulated", endpoint=cloud.url))
    api.create_node(LOCATION, "shared", {**SPEC, "labels": {"team": "x"}})
    cloud.wait_for("shared", "READY")
    yield api
    cloud.clear()
    if resource := api.tpu(LOCATION, "shared", queue=False):
        api.delete(LOCATION, resource)
        cloud.wait_for("shared", "GONE")


@pytest.fixture
def users(drive, tpu, monkeypatch, tmp_path):
    """Two jobs of two stores that use the TPU."""

    def call(hook: Callable[[], object], home: Path) -> object:
        with monkeypatch.context() as patch:
            patch.setenv("TPUX_HOME", str(home))
            return hook()

    made = []
    for number, (home, labels) in enumerate([("tpux", {}), ("eve", EVE)]):
        job = drive(name="shared", job=f"00000{number + 6}")
        job.labels.update(labels)
        for name in ("step", "release_step", "inspect"):
            setattr(job, name, partial(call, getattr(job, name), tmp_path / home))
        made.append(job)
    return made


@pytest.fixture
def write_job(tmp_path):
    """Return a function that makes a job active in the store, which starts no supervisor."""

    def write(job: str) -> None:
        directory = tmp_path / "tpux" / "jobs" / "bob" / job
        directory.mkdir(parents=True)
        created = {"type": "created", "at": 1.0, "id": job, "user": "bob", "name": "x"}
        (directory / "events.jsonl").write_text(json.dumps(created) + "\n")

    return write


def labels(api: Api) -> dict[str, str]:
    return dict(api.node(LOCATION, "shared").labels)


def write(cloud, api: Api, values: dict[str, str]) -> None:
    api.update_node(LOCATION, "shared", "labels", values)
    while labels(api) != values:
        pass


def test_the_second_user_waits_until_the_first_has_released_the_tpu(users, tpu):
    ann, eve = users
    assert ann.ready().allocation.borrowed
    answer = eve.run(until="is in use by job")
    assert "job 6 of ann-lee in another store" in answer.why
    assert "gcloud compute tpus tpu-vm update shared --zone=us-central2-b --remove-labels=tpux-claim-" in answer.why
    assert set(labels(tpu)) == {"team", claim_key(ann.labels["tpux-store"])}
    assert ann.inspect().state == "ready"
    eve.run(eve.release_step)
    assert ann.inspect().state == "ready"
    ann.release()
    assert labels(tpu) == {"team": "x"}
    eve.saved_state = {}
    assert eve.ready().allocation.borrowed
    assert claims_in(labels(tpu))["evesstore"].user == "eve"
    assert user_of(labels(tpu)) == ("000007", "eve")
    eve.release()
    assert labels(tpu) == {"team": "x"}


def test_of_two_claims_that_are_written_at_once_one_is_held(users, tpu):
    ann, eve = users
    for job in (ann, eve):
        job.run(until="claiming shared, which")
    for job in (ann, eve):  # both have seen that it is free
        assert "another store claims it too" in job.step().why
    answers: dict[str, object] = {}
    for _ in range(400):
        for job in (ann, eve):
            if not isinstance(answers.get(job.job), Ready):
                answers[job.job] = job.step()
        if any(isinstance(answer, Ready) for answer in answers.values()):
            break
        ann.at = max(ann.at, eve.at) + 1
    assert sorted(type(answer).__name__ for answer in answers.values()) == ["Ready", "Waiting"]


def test_a_tpu_that_another_store_claims_is_not_deleted(users, tpu):
    ann, eve = users
    ann.tpu = GcpTpuSection.model_validate({**ann.tpu.model_dump(exclude_unset=True), "release": "always"})
    ann.ready()
    fresh = Claim("evesstore", int(ann.at) - 1, int(ann.at) - 100, "000007", "eve")
    write(ann.cloud, tpu, {"team": "x", fresh.key: fresh.value})
    assert ann.inspect().state == "gone", "it was removed, and another one's is there"
    ann.release()
    assert ann.requests("nodes.delete") == [], "although that one has expired"
    why = eve.run(until="claiming").why
    assert "claiming" in why


def test_a_tpu_is_deleted_only_once_it_is_claimed(users, tpu):
    ann, _ = users
    ann.tpu = GcpTpuSection.model_validate({**ann.tpu.model_dump(exclude_unset=True), "release": "always"})
    ann.run(until="claiming")
    answer = ann.release_step()
    assert isinstance(answer, Waiting)
    assert ann.requests("nodes.delete") == []
    ann.release()
    assert len(ann.requests("nodes.delete")) == 1


def test_a_claim_that_was_removed_is_written_anew(users, tpu):
    ann, _ = users
    ann.ready()
    write(ann.cloud, tpu, {})
    assert ann.inspect().state == "ready"
    while not claims_in(labels(tpu)):
        pass
    ann.at += VALID_FOR - 60
    before = claims_in(labels(tpu))
    ann.inspect()
    while claims_in(labels(tpu)) == before:
        pass
    (claim,) = claims_in(labels(tpu)).values()
    assert claim.until - ann.at == VALID_FOR
    ann.release()


BUSY = "Cloud TPU received a bad request. update is not supported while in state {state}"


def test_a_claim_is_removed_once_the_state_of_the_tpu_allows_it(users, tpu):
    ann, _ = users
    ann.ready()
    busy = ann.cloud.error(400, "nodes.patch", message=BUSY.format(state="REPAIRING"))
    for _ in range(3):
        answer = ann.release_step()
        assert isinstance(answer, Waiting)
        assert "not supported while in state REPAIRING" in answer.why
        ann.pause(answer)
    ann.cloud.clear(busy)
    assert ann.release() == Released()
    assert labels(tpu) == {"team": "x"}


@pytest.mark.parametrize("stopped", [True, False])
def test_a_claim_that_cannot_be_removed_is_reported(users, tpu, stopped):
    ann, _ = users
    ann.ready()
    if stopped:
        tpu.stop_node(LOCATION, "shared")
        ann.cloud.wait_for("shared", "STOPPED")
    message = BUSY.format(state="STOPPED") if stopped else "Permission denied."
    ann.cloud.error(400 if stopped else 403, "nodes.patch", message=message)
    left = ann.release().left
    assert left.startswith("the claim of TPU shared in us-central2-b remains (")
    remove = f"--zone=us-central2-b --remove-labels={claim_key(ann.labels['tpux-store'])}"
    assert left.endswith(f"; `gcloud compute tpus tpu-vm update shared {remove}` removes it")


def test_without_permission_to_change_labels_the_job_is_refused(users, tpu, tmp_path):
    ann, _ = users
    ann.cloud.error(403, method="nodes.patch")
    api, resource = Api(Place("emulated", endpoint=ann.cloud.url)), tpu.tpu(LOCATION, "shared", queue=False)
    with pytest.raises(Exception, match="may not change the labels"):
        borrowing.check_may_claim(api, LOCATION, resource)
    assert "may not change the labels" in ann.denied().failure.evidence
    ann.cloud.clear()
    borrowing.check_may_claim(api, LOCATION, resource)
    assert labels(tpu) == {"team": "x"}, "nothing has changed"


def test_a_program_is_not_started_without_the_claim(users, tpu, monkeypatch):
    ann, _ = users
    allocation = ann.ready().allocation
    monkeypatch.setattr(borrowing.machines, "allocation_of", lambda _: allocation)
    monkeypatch.setattr(borrowing, "CHECKED_FOR", 0.0)
    tpu_section = SimpleNamespace(allocation_mode="tpu-vm")
    job = SimpleNamespace(store_id=ann.labels["tpux-store"], resolved={"tpu-vm": ann.resolved}, tpu=tpu_section)
    ann.allocator.prepare_command(job=job, command=None)
    fresh = Claim("evesstore", 9, 1, "000007", "eve")
    write(ann.cloud, tpu, {fresh.key: fresh.value})
    with pytest.raises(HostUnreachableError, match="not this job's now"):
        ann.allocator.prepare_command(job=job, command=None)
    ann.cloud.error(503)
    with pytest.raises(HostUnreachableError, match="is not known"):
        ann.allocator.prepare_command(job=job, command=None)


def test_a_resumed_job_does_not_delete_its_old_tpu_under_the_job_that_has_borrowed_it(drive, write_job):
    old = drive(name="kept", job="000951")
    name = old.ready().allocation.name
    job = drive(name=name, job="000952")
    write_job("000952")
    assert job.ready().allocation.borrowed
    write_job("000951")  # it is resumed
    assert job.inspect().state == "ready"
    assert "in use by job 952" in old.step().why
    assert "in use by job 952" in old.release_step().why
    assert isinstance(job.run(), Ready)
    job.release()
    old.release()
    assert old.nodes() == []


@pytest.fixture
def queued(cloud):
    """Return a function that creates a queued resource by hand, with as many nodes as it is given names."""
    made: list[str] = []
    api = Api(Place("emulated", endpoint=cloud.url))

    def create(name: str, nodes: list[str], **spec: object) -> Api:
        parent = f"projects/{LOCATION.project}/locations/{LOCATION.zone}"
        if len(nodes) == 1:
            specs = [{"parent": parent, "node_id": nodes[0], "node": {**SPEC, **spec}}]
        else:
            count = {"node_count": len(nodes), "node_id_prefix": nodes[0].rpartition("-")[0]}
            specs = [{"parent": parent, "multislice_params": count, "node": {**SPEC, **spec}}]
        api.create_queued_resource(LOCATION, name, {"tpu": {"node_spec": specs}}, str(uuid.uuid4()))
        made.append(name)
        for node in nodes:
            cloud.wait_for(node, "READY")
        return api

    yield create
    cloud.clear()
    for name in made:
        while resource := api.tpu(LOCATION, name, queue=True) or api.leftover_nodes(LOCATION, name, ()):
            api.delete(LOCATION, resource)  # in some states it is ignored


@pytest.mark.parametrize("first", ["q", "n"])
def test_two_jobs_of_a_store_do_not_share_a_tpu_that_has_two_names(drive, queued, first, write_job):
    queued("q", ["n"])
    second = "n" if first == "q" else "q"
    ann = drive(mode="queued-resources", name=first, job="000961")
    bob = drive(mode="queued-resources", name=second, job="000962", release="always")
    write_job("000961")
    assert ann.ready().allocation.borrowed
    assert "in use by job 961" in bob.run(until="in use by").why
    bob.run(bob.release_step)
    assert ann.inspect().state == "ready", "it is not deleted, and its claim not removed, under the first job"
    ann.release()
    assert ann.nodes() or bob.nodes()


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("name", ["ms-0", "ms-1"])
def test_a_slice_of_a_multislice_is_not_borrowed_or_deleted_alone(drive, queued, cloud, name, lost):
    owner = {"tpux-store": borrowing.machines.store_id(), "tpux-user": "ann-lee", "tpux-job": "000970"}
    queued("ms", ["ms-0", "ms-1"], labels=owner)  # an ended job of this store has left it behind
    if lost:
        cloud.preempt(name)
    job = drive(name=name, release="always")
    failure = job.denied().failure
    assert failure.evidence == f"TPU {name} in us-central2-b is one of the 2 slices of the queued resource ms"
    assert failure.hint == "set tpu.name: ms and tpu.node_count: 2 to use all of them, or choose another tpu.name"
    sections = {"job": JobSection(name="x"), "tpu": job.tpu}
    described = Job(job.job, "ann", "store", job.directory, sections, resolved={"tpu-vm": job.resolved})
    if not lost:  # a suspended queued resource has no nodes after a moment
        (finding,) = [one for one in job.allocator.preflight(job=described) if one.where == "tpu.name"]
        assert (finding.level, finding.message) == ("error", failure.evidence)
    job.release()
    assert job.requests("nodes.delete") == job.requests("queuedResources.delete") == []


@pytest.mark.parametrize("always", [{}, {"release": "always"}])
def test_no_name_of_a_tpu_that_is_gone_remains_leased(drive, queued, cloud, write_job, always):
    """Another one under one of its names is another TPU, also while this job goes on with one of its own."""
    api = queued("qq", ["nn"])
    ann = drive(mode="queued-resources", name="qq", job="000963", **always)
    write_job("000963")
    assert ann.ready().allocation.borrowed
    while resource := api.tpu(LOCATION, "qq", queue=True):  # by somebody
        api.delete(LOCATION, resource)
    if always:
        assert ann.ready().allocation.name == "qq-000963"
    else:
        ann.release()
    queued("qq", ["nn"])
    bob = drive(mode="queued-resources", name="qq", job="000964")
    assert bob.ready().allocation.borrowed
    for job in (ann, bob):
        job.release()


def test_a_borrowed_queued_resource_in_an_unknown_state_is_not_deleted(drive, queued, monkeypatch):
    """Its nodes are not looked at: one of them may have the claim of another store."""
    known = Api.queued_resource
    api, claim = queued("qu", ["nu"]), {KEY: "9999999999-1-000007-eve"}
    api.update_node(LOCATION, "nu", "labels", claim)
    while api.node(LOCATION, "nu").labels != claim or known(api, LOCATION, "qu").state != "ACTIVE":
        pass
    job = drive(mode="queued-resources", name="qu", release="always")
    with monkeypatch.context() as patch:
        patch.setattr(Api, "queued_resource", lambda *args: replace(known(*args), state="DRAINING"))
        while not job.saved_state.get("borrowed"):
            job.pause(job.step())
        for _ in range(3):
            assert "qu is DRAINING" in job.release_step().why
    assert job.requests("queuedResources.delete") == []
    job.release()
    assert api.node(LOCATION, "nu"), "now the claim is seen"


# --- the pure function ----------------------------------------------------------------------------

stores = st.sampled_from(["a", "b", "c"])
times = st.integers(0, 1000)
claims = st.dictionaries(stores, st.tuples(times, times), max_size=3)


notes = st.builds(
    Note,
    value=st.just(""),
    begun_at=times,
    sent=st.booleans(),
    late=st.booleans(),
    seen_at=times,
    held=st.booleans(),
    retry_at=times,
)


@given(claims=claims, now=times, value=st.booleans(), note=notes)
def test_a_claim_is_held_only_alone_and_settled_and_written_only_where_there_is_none(claims, now, value, note):
    found = {claim_key(s): Claim(s, until, since, "1", "u").value for s, (until, since) in claims.items()}
    fresh = Claim("a", now + VALID_FOR, now, "1", "u")
    if value and fresh.key in found:
        note = replace(note, value=found[fresh.key])
    step, noted = next_step(found, fresh, note, float(now))
    others = set(claims) - {"a"}
    if step in {"write", "intend"}:
        assert not others
    if step == "held":
        assert fresh.key in found
        assert claim_of_another(found, "a") is None
        if not note.held:
            assert not others
            assert noted.value == found[fresh.key]
            slow = noted.late or noted.seen_at - noted.begun_at > SLOW
            assert now - noted.seen_at >= (SETTLE_SLOWLY if slow else SETTLE)
    if others and not note.held:
        assert step == "another"


@given(since=times, until=times, user=st.text(max_size=80), now=times)
def test_a_claim_is_read_as_it_was_written_and_renewed_in_time(since, until, user, now):
    claim = Claim("a", until, since, "000012", user)
    assert len(claim.value) <= 63
    read = claims_in({claim.key: claim.value})["a"]
    assert (read.until, read.since, read.job) == (until, since, "000012")
    new = renewed({claim.key: claim.value}, Claim("a", now + VALID_FOR, now, "000012", user))
    assert new is None or (new.since == (since or now) and new.until == now + VALID_FOR)


def test_a_claim_that_cannot_be_read_counts():
    assert claim_of_another({KEY: "anything"}, "a") is not None


# --- random walks -----------------------------------------------------------------------------------


class Crash(BaseException):
    """Stands for a kill -9 between two instructions."""


class SharedCloud:
    """One node, whose labels are replaced some time after the call."""

    def __init__(self, choose: random.Random) -> None:
        self.choose, self.now, self.labels, self.deleted = choose, 1_000_000.0, {}, False
        self._updates: list[tuple[float, int, dict[str, str]]] = []
        # Where processes die, updates that they have sent twice are not late by more than the time to settle.
        self.crashes, self.delays = choose.choice([(0.05, [0, 1, 3]), (0, [0, 1, 8, 30]), (0, [0, 30, 50])])
        self.user: User | None = None

    def advance(self, to: float) -> None:
        while self._updates and self._updates[0][0] <= to:
            self.labels = heapq.heappop(self._updates)[2]
        self.now = to

    def _call(self) -> None:
        if self.choose.random() < self.crashes:
            raise Crash

    def tpu(self, location: Location, name: str, *, queue: bool) -> TpuResource | None:
        self._call()
        node = Node(name, location.zone, "READY", labels=dict(self.labels), endpoints=(Endpoint("1", "2"),))
        return None if self.deleted else TpuResource.from_node(node)

    def update_node(self, location: Location, name: str, field: str, values: dict[str, str]) -> str:
        due = self.now + self.choose.choice(self.delays)
        heapq.heappush(self._updates, (due, self.choose.getrandbits(32), dict(values)))
        self._call()
        return "operation"

    def guest_attributes(self, *_: object) -> list[object]:
        return []

    def running_creation(self, *_: object) -> str:
        return ""

    def delete(self, location: Location, resource: TpuResource) -> None:
        assert all(not other.uses for other in self.users if other is not self.user)
        self.deleted = True


class User:
    """A user with a store of his own: provisions, uses the TPU, looks after it, releases it, again and again."""

    def __init__(self, cloud: SharedCloud, number: int) -> None:
        self.cloud, self.due, self.uses, self.until = cloud, cloud.now + number * 0.3, False, 0.0
        self.saved: dict = {}
        self.hook = "provision"
        kept = cloud.choose.random() < 0.9
        self.tpu = GcpTpuSection(
            accelerator="v4-8", zone="z", name="n", existing=True, release="created" if kept else "always"
        )
        self.of = {"tpux-store": f"s{number}", "tpux-user": "u", "tpux-job": "000001", "tpux-token": "t"}

    def step(self) -> None:
        cloud, saved = self.cloud, json.loads(json.dumps(self.saved))
        cloud.user, self.due = self, cloud.now + 1
        resolved = {"project": "p", "endpoint": "http://e"}
        asked = ProvisionRequest("n", self.tpu, None, self.of, (), Path("/nonexistent"), saved, resolved=resolved)
        try:
            if self.hook == "inspect":
                self._look(asked)
                return
            answer = (provision.provision if self.hook == "provision" else release.release)(asked, queue=False)
        except Crash:
            self.due = cloud.now + cloud.choose.choice([0.1, 5, 20])
            return
        if isinstance(answer, (Waiting, Ready)) and answer.saved_state is not None:
            self.saved = dict(answer.saved_state)
        if isinstance(answer, Ready):
            assert all(not other.uses for other in cloud.users), "two users at once"
            self.uses, self.hook, self.until = True, "inspect", cloud.now + cloud.choose.choice([20, 300, 40_000])
        elif isinstance(answer, Waiting):
            self.due = cloud.now + max(answer.poll_after, 0.05)
        elif isinstance(answer, Denied):
            self.hook = "release"
        elif isinstance(answer, Released):
            self.saved, self.hook, self.due = {}, "provision", cloud.now + cloud.choose.choice([1, 100])

    def _look(self, asked: ProvisionRequest) -> None:
        status = inspect(asked, queue=False)
        self.due = self.cloud.now + (status.poll_after or 30)
        if status.state == "gone" or self.cloud.now > self.until:
            self.uses, self.hook = False, "release"


@settings(max_examples=max(25, settings().max_examples // 4))  # each takes a second on a slow machine
@given(seed=st.integers(0, 2**32))
def test_two_users_never_use_one_tpu_at_once(seed):
    cloud = SharedCloud(random.Random(seed))
    cloud.users = [User(cloud, number) for number in range(cloud.choose.choice([2, 3]))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(request.RequestContext, "api", cloud)
        patch.setattr(request, "now", lambda: cloud.now)
        patch.setattr(borrowing.random, "uniform", cloud.choose.uniform)
        for name, answer in {"acquire_all": {}, "release": None, "holder_of": "", "is_active": False}.items():
            patch.setattr(borrowing.machines, name, lambda *_, answer=answer: answer)
        patch.setattr("tpux_gcp.login._write", lambda *_: None)  # there is no directory
        ending = False
        for count in range(600):
            if count == 300 and not ending:
                cloud.crashes, ending = 0, True
            user = min(cloud.users, key=lambda one: one.due)
            if ending and user.hook == "provision":
                user.hook = "release"
            if ending and user.hook == "inspect":
                user.uses, user.hook = False, "release"
            if ending and user.hook == "release" and not user.saved:
                user.due = float("inf")
                if all(one.due == float("inf") for one in cloud.users):
                    break
                continue
            cloud.advance(max(cloud.now, user.due))
            user.step()
