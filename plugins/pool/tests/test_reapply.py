"""`tpux reapply`: a TPU of the pool is deleted and created again as it was, on the emulator."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from tpux.api import machines
from tpux_gcp.api import Api
from tpux_gcp.credentials import Place
from tpux_gcp.resource import Location
from tpux_testing import command_contract

LOCATION = Location("emulated", "us-central2-b")
SPEC = {
    "accelerator_type": "v4-8",
    "labels": {"team": "x"},
    "metadata": {"who": "ann", "startup-script": "true"},
    "tags": ["ssh"],
    "schedulingConfig": {"spot": True},
}


def node(cloud, name: str) -> dict[str, object]:
    return dict(Api(Place("emulated", endpoint=cloud.url)).node_message(LOCATION, name) or {})


def sent(cloud, method: str) -> int:
    return len([request for request in cloud.requests if request.method == method])


def test_a_preempted_tpu_is_created_again_as_it_was_once_there_is_capacity(cloud, by_hand, cli, job):
    by_hand("one", **SPEC)
    before = node(cloud, "one")
    cli("tpu", "register", "one", "--alias", "p1")
    cloud.preempt("one")
    cloud.wait_for("one", "PREEMPTED")
    assert "pass -y to confirm" in cli("reapply", "p1", code=2).stderr
    tries = sent(cloud, "nodes.create")
    cloud.stockout("us-central2-b", count=2)
    done = cli("reapply", "p1", "-y", "--retry-every", "0.1s", "--for", "10m")
    assert "trying again in 0 s" in done.stderr
    assert "one in us-central2-b is READY" in done.stderr
    assert sent(cloud, "nodes.create") - tries == 3
    after = node(cloud, "one")
    kept = ("acceleratorType", "runtimeVersion", "labels", "tags", "schedulingConfig", "metadata")
    assert {key: after[key] for key in kept} == {key: before[key] for key in kept}
    assert after["id"] != before["id"]
    assert cli.json("find")[0]["free"], "it is not held any more"
    assert not list((Path(os.environ["TPUX_HOME"]) / "pool" / "reapply").iterdir())
    assert job(name="p1").steps() == "one"


def test_what_is_created_is_known_after_a_call_that_did_not_finish(cloud, by_hand, cli):
    by_hand("one", **SPEC)
    cli("tpu", "register", "one")
    cloud.stockout("us-central2-b")
    failed = cli("reapply", "one", "-y", "--retry-every", "1m", "--for", "30s", code=1).stderr
    assert "one was not created: " in failed
    cloud.wait_for("one", "GONE")
    (plan,) = (Path(os.environ["TPUX_HOME"]) / "pool" / "reapply").iterdir()
    assert stat.S_IMODE(plan.stat().st_mode) == 0o600, "a startup script may have secrets"
    cloud.clear()
    cli("reapply", "one", "-y")
    assert node(cloud, "one")["tags"] == ["ssh"]
    assert not plan.exists()


def test_a_queued_resource(cloud, cli):
    before = sent(cloud, "queuedResources.create")  # by the tests before: they share the emulator
    cli("tpu", "create", "queued", "--type", "v4-8", "--queued", "--pricing", "spot")
    cli("reapply", "queued", "-y")
    (found,) = (tpu for tpu in cli.json("tpu", "list") if tpu["name"] == "queued")
    assert (found["kind"], found["pricing"], found["state"]) == ("queued resource", "spot", "READY")
    assert sent(cloud, "queuedResources.create") - before == 2
    cli("tpu", "delete", "queued", "-y")


def test_one_that_is_in_use_stays(cloud, by_hand, cli, job):
    before = sent(cloud, "nodes.delete")  # by the tests before, which share the emulator
    by_hand("one"), by_hand("two"), by_hand("of-a-job", labels={"tpux-store": "beef", "tpux-job": "000007"})
    for name in ("one", "two"):
        cli("tpu", "register", name)
    assert job(name="one").steps() == "one"
    assert "one is in use by job 1 of ann" in cli("reapply", "one", "-y", code=2).stderr
    cli.env["TPUX_USER"] = "bob"
    cli("hold", "two")
    cli.env["TPUX_USER"] = "ann"
    assert "two is held by bob" in cli("reapply", "two", "-y", code=2).stderr
    assert "is the TPU of job 7" in cli("reapply", "of-a-job", "-y", code=2).stderr
    assert sent(cloud, "nodes.delete") == before
    assert "no TPU none in us-central2-b: what it was" in cli("reapply", "none", "-y", code=2).stderr


def test_the_users_own_hold_remains(by_hand, cli):
    by_hand("one")
    cli("tpu", "register", "one")
    cli("hold", "one", "--note", "mine")
    cli("reapply", "one", "-y")
    assert machines.lease_of("projects/emulated/locations/us-central2-b/one")["note"] == "mine"


@pytest.mark.usefixtures("cloud")
def test_the_command(by_hand, cli):
    by_hand("one")
    command_contract("reapply", ["one", "-y"], wrong=[["none"]], cli=cli)
    assert json.loads(cli("find", "--json").stdout) == []
