"""The allocator `pool`, and the commands for the TPUs that people share, on the emulator."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from tpux import TpuxError
from tpux.api import machines
from tpux_gcp.api import Api
from tpux_gcp.credentials import Place
from tpux_gcp.resource import Location
from tpux_pool.allocator import State
from tpux_testing import command_contract, hooks_contract, section_contract

LOCATION = Location("emulated", "us-central2-b")
SPEC = {"acceleratorType": "v4-8", "runtimeVersion": "tpu-ubuntu2204-base"}


def test_hooks_and_sections():
    hooks_contract("pool")
    section_contract("pool")


def labels(cloud, name: str) -> dict[str, str]:
    tpu = Api(Place("emulated", endpoint=cloud.url)).tpu(LOCATION, name, queue=True)
    return {} if tpu is None else dict(tpu.labels)


def test_jobs_take_registered_tpus_and_wait_in_the_order_of_their_requests(cloud, by_hand, job, cli):
    by_hand("one", labels={"team": "x"}), by_hand("two"), by_hand("other")
    for name in ("one", "two"):
        cli("tpu", "register", name)
    first, second, third, fourth = (job() for _ in range(4))
    assert (first.steps(), second.steps()) == ("one", "two")
    assert (third.steps(), fourth.steps()) == ("", "")
    assert third.said[-1] == (
        "waits for v4-8, place 1 in the queue: one is in use by job 1 of ann; two is in use by job 2 of ann"
    )
    assert "place 2 in the queue after job 3 of ann: one is" in fourth.said[-1]
    assert first.inspect().state == "ready"
    second.release()
    assert fourth.steps() == ""
    assert third.steps() == "two"
    first.release()
    assert labels(cloud, "one") == {"team": "x"}, "it is left as it was found"
    assert fourth.steps() == "one"
    third.release(), fourth.release()
    assert [
        e for e in cloud.requests_since(0) if e.method.startswith("nodes.delete") and e.name in {"one", "two"}
    ] == []


def test_a_tpu_that_is_not_registered_is_never_taken_and_one_of_another_type_neither(by_hand, job, cli):
    by_hand("unlabelled"), by_hand("big", accelerator_type="v4-16"), by_hand("labelled")
    cli("tpu", "register", "big")
    cli("tpu", "register", "labelled", "--pool", "lab")
    cli("tpu", "unregister", "labelled")
    cloud = {"from": ["registered", "cloud"], "name": "lab"}
    first = job(cloud)
    assert first.steps() == ""
    cli("tpu", "register", "labelled", "--pool", "lab", "--alias", "p1")
    assert job({"from": ["cloud"], "name": "other"}).steps() == ""
    assert job({"from": ["cloud"], "name": "lab"}).steps() == "", "the first one is before it"
    assert first.steps() == "labelled"
    assert job(accelerator=["v4-32", "v4-16"]).steps() == "big"


def test_a_preempted_tpu_is_given_back_and_another_one_taken(cloud, by_hand, job, cli):
    by_hand("one"), by_hand("two")
    cli("tpu", "register", "one"), cli("tpu", "register", "two")
    first = job()
    assert first.steps() == "one"
    cloud.preempt("one")
    assert first.inspect().state == "preempted"
    first.release()
    assert first.steps() == "two"
    assert labels(cloud, "one") == {} or "PREEMPTED" in str(cloud.status()), "it is not deleted"


@pytest.mark.system
def test_holds(by_hand, job, cli):
    by_hand("one")
    cli("tpu", "register", "one", "--alias", "p1")
    assert "p1 is held until" in cli("hold", "p1", "--for", "30m", "--note", "debugging").stderr
    (found,) = cli.json("find", "v4")
    assert (found["user"], found["job"], found["note"], found["free"]) == ("ann", None, "debugging", False)
    assert 1700 < found["until"] - time.time() <= 1800
    assert cli.json("find", "v4-8,v2", "--free") == []
    assert cli.json("find", "v2,v3") == []
    bob, ann = job(user="bob"), job()
    assert (bob.steps(), ann.steps()) == ("", "")
    assert "p1 is held by ann (debugging)" in bob.said[-1]
    cli.env["TPUX_USER"] = "bob"
    assert "p1 is held by ann" in cli("hold", "p1", code=2).stderr
    assert "you do not hold p1" in cli("release", "p1", code=2).stderr
    cli.env["TPUX_USER"] = "ann"
    named = job(name="p1")
    assert named.steps() == "one", "a job of the user that names it takes the hold over"
    assert "in use by job 3 of ann" in cli("hold", "p1", code=2).stderr
    assert cli.json("find")[0]["job"] == "000003"
    named.release()
    cli("hold", "p1", "--for", "1s")
    while machines.holder_of("projects/emulated/locations/us-central2-b/one"):
        time.sleep(0.05)
    assert cli("hold", "p1").returncode == 0
    cli("release", "p1")
    assert bob.steps() == "one"


def test_aliases(by_hand, cli):
    by_hand("one"), by_hand("two")
    cli("tpu", "register", "one", "--alias", "p1")
    assert "p1 is one in us-central2-b already" in cli("tpu", "register", "two", "--alias", "p1", code=2).stderr
    cli("tpu", "alias", "p1", "best")
    assert [tpu["alias"] for tpu in cli.json("find")] == ["best"]
    cli("tpu", "unregister", "best")
    assert cli.json("find") == []
    assert "no TPU best is registered" in cli("tpu", "unregister", "best", code=2).stderr


def test_the_first_job_leaves_a_tpu_that_it_cannot_use_to_the_next_one(by_hand, job, cli):
    """Of another version, or one that it could not borrow just now."""
    by_hand("one")
    cli("tpu", "register", "one")
    other = job(version="tpu-vm-base")
    assert other.steps() == ""
    assert "no TPU of the pool is v4-8 as the config asks for" in other.said[-1]
    refused = job()
    refused.saved = State(time.time(), avoid={"us-central2-b/one": time.time() + 300}).to_json()
    assert refused.steps() == ""
    assert "job" not in refused.said[-1].partition("place")[2].partition(":")[0]
    last = job(pricing="spot")
    assert last.steps() == "one"
    assert (last.tpu.pricing, last.pricing) == ("spot", "ondemand"), "it is counted as what it is"


def test_a_name_means_the_tpu_of_that_alias(by_hand, job, cli):
    by_hand("one"), by_hand("two")
    cli("tpu", "register", "one", "--alias", "p0")
    said = cli("tpu", "register", "two", "--alias", "one", code=2).stderr
    assert "one is the name of another registered TPU" in said
    cli("tpu", "unregister", "one")
    cli("tpu", "register", "two", "--alias", "one")
    said = cli("tpu", "register", "one", "--alias", "p1", code=2).stderr
    assert "one is the alias of two" in said
    path = next(Path(cli.env["TPUX_HOME"]).glob("pool/registered.json"))
    known = json.loads(path.read_text())
    path.write_text(json.dumps([{**known[0], "name": "one", "alias": "p1"}, *known]))  # by an earlier version
    assert job(name="one").steps() == "two"
    assert job(name="one").steps() == ""


def test_a_node_is_registered_as_its_queued_resource(cloud, cli):
    api = Api(Place("emulated", endpoint=cloud.url))
    node = {"parent": LOCATION.parent, "nodeId": "node-a", "node": SPEC}
    api.create_queued_resource(LOCATION, "queue-a", {"tpu": {"nodeSpec": [node]}}, "r1")
    cloud.wait_for("node-a", "READY")
    assert "registered queue-a" in cli("tpu", "register", "node-a").stderr
    assert [tpu["name"] for tpu in cli.json("find")] == ["queue-a"]


def test_a_tpu_that_is_registered_in_another_project_is_not_taken(by_hand, job, cli):
    """It would get the secrets of the job; another member may have registered it."""
    by_hand("one")
    cli("tpu", "register", "one")
    (path,) = Path(cli.env["TPUX_HOME"]).glob("pool/registered.json")
    path.write_text(path.read_text().replace('"emulated"', '"another"'))
    assert job().steps() == ""


def test_a_shut_laptop_delays_nobody(by_hand, job, cli, monkeypatch):
    by_hand("one")
    cli("tpu", "register", "one")
    first, laptop, third = job(), job(), job()
    assert (first.steps(), laptop.steps(), third.steps()) == ("one", "", "")
    first.release()
    assert third.steps() == ""
    monkeypatch.setattr("tpux_pool.queue.FORGOTTEN_AFTER", -1.0)
    assert third.steps() == "one"


@pytest.mark.parametrize("error", [OSError(6, "No such device or address"), TpuxError("kept from others")], ids=str)
def test_a_file_of_another_user_that_cannot_be_read_is_waited_for(by_hand, job, cli, monkeypatch, error):
    by_hand("one")
    cli("tpu", "register", "one")
    one = job()

    def fail(*_arguments: object):
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(machines, "acquire_all", fail)
        with pytest.raises(AssertionError, match="looking for a TPU"):  # it goes on, and says why
            one.steps(9)
    assert str(error) in one.said[-1]
    assert one.steps() == "one"


@pytest.mark.parametrize(
    ("command", "calls"), [("hold", [["p1"]]), ("release", [["p1"]]), ("find", [[], ["v4", "--free", "--json"]])]
)
def test_commands(by_hand, cli, command, calls):
    by_hand("one")
    cli("tpu", "register", "one", "--alias", "p1")
    if command == "release":
        cli("hold", "p1")
    wrong = [["none"]] if command != "find" else []
    command_contract(command, *calls, wrong=wrong, cli=cli)
