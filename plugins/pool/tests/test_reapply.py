"""`tpux reapply`: a TPU of the pool is deleted and created again as it was, on the emulator."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from tpux.api import machines
from tpux_gcp.api import Api
from tpux_gcp.credentials import Place
from tpux_gcp.resource import Location
from tpux_testing import CommandLine, command_contract

LOCATION = Location("emulated", "us-central2-b")
LEASE = f"{LOCATION.parent}/one"
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


class Typed:
    """A command of tpux whose stdin is a terminal."""

    def __init__(self, cli: CommandLine, *words: str) -> None:
        self.terminal, stdin = os.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tpux", *words], env=cli.env, cwd=cli.work, stdin=stdin, stderr=subprocess.PIPE
        )
        os.close(stdin)
        self.said = b""

    def until(self, text: str) -> None:
        """Read until it has said something."""
        assert self.process.stderr is not None
        while text.encode() not in self.said:
            found = os.read(self.process.stderr.fileno(), 1000)
            assert found, self.said
            self.said += found

    def answer(self, text: str) -> None:
        """Type a line."""
        os.write(self.terminal, f"{text}\n".encode())

    def end(self) -> tuple[int, str]:
        """Wait until it has ended; return its exit code and what it has said."""
        _, rest = self.process.communicate(timeout=120)
        os.close(self.terminal)
        return self.process.returncode, (self.said + rest).decode()


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


def test_the_tpu_that_it_has_made_stays_if_the_api_did_not_answer(cloud, by_hand, cli):
    """It is asked again only once the TPU is ready; the user's hold lasts as long as the command meanwhile."""
    by_hand("one")
    cli("tpu", "register", "one")
    cli("hold", "one", "--for", "30m")
    before = sent(cloud, "nodes.create"), sent(cloud, "nodes.delete")
    cloud.delay(node_CREATING=2)
    typed = Typed(cli, "reapply", "one", "-y", "--retry-every", "0.1s", "--for", "6h")
    cloud.wait_for("one", "CREATING")
    cloud.freeze("one")
    cloud.error(503, "nodes.get")
    typed.until("trying again")
    assert float(machines.lease_of(LEASE)["until"]) - time.time() > 6 * 3600
    cloud.unfreeze("one")
    cloud.wait_for("one", "READY")
    cloud.clear()
    code, said = typed.end()
    cloud.delay(node_CREATING=0.02)
    assert (code, sent(cloud, "nodes.create"), sent(cloud, "nodes.delete")) == (0, before[0] + 1, before[1] + 1), said


def test_the_tpu_that_it_has_made_stays_if_the_answer_to_the_request_was_lost(cloud, by_hand, cli):
    by_hand("one")
    before = sent(cloud, "nodes.delete")
    cloud.lose("nodes.create")
    typed = Typed(cli, "reapply", "one", "-y", "--retry-every", "0.1s", "--for", "6h")
    code, said = typed.end()
    assert (code, sent(cloud, "nodes.delete")) == (0, before + 1), said


def test_the_tpu_that_an_earlier_call_has_made_stays_when_it_is_typed_again(cloud, by_hand, cli):
    by_hand("one")
    before = sent(cloud, "nodes.delete")
    cloud.delay(node_CREATING=2)
    typed = Typed(cli, "reapply", "one", "-y", "--for", "3s")
    cloud.wait_for("one", "CREATING")
    cloud.freeze("one")
    code, said = typed.end()
    assert (code, "timed out" in said) == (1, True), said
    cloud.unfreeze("one")
    cloud.wait_for("one", "READY")
    cloud.delay(node_CREATING=0.02)
    assert "is READY: an earlier call has created it again" in cli("reapply", "one", "-y").stderr
    assert sent(cloud, "nodes.delete") == before + 1
    cli("reapply", "one", "-y")
    assert sent(cloud, "nodes.delete") == before + 2


def reapply_and_kill_it(cloud, cli):
    """Kill a `tpux reapply one` while it waits for the TPU, which becomes ready without it."""
    cloud.delay(node_CREATING=2)
    typed = Typed(cli, "reapply", "one", "-y", "--for", "6h")
    cloud.wait_for("one", "CREATING")
    typed.process.kill()
    typed.end()
    cloud.wait_for("one", "READY")
    cloud.delay(node_CREATING=0.02)


def test_the_hold_of_a_call_that_was_killed_ends_when_it_is_typed_again(cloud, by_hand, cli):
    by_hand("one")
    reapply_and_kill_it(cloud, cli)
    assert machines.holder_of(LEASE) == machines.HOLD
    assert "is READY: an earlier call has created it again" in cli("reapply", "one", "-y").stderr
    assert not machines.holder_of(LEASE)


def test_a_hold_of_the_users_own_stays_when_an_earlier_call_has_created_it(cloud, by_hand, cli):
    by_hand("one")
    cli("tpu", "register", "one")
    reapply_and_kill_it(cloud, cli)
    cli("hold", "one", "--note", "mine")
    cli("reapply", "one", "-y")
    assert machines.lease_of(LEASE)["note"] == "mine"


def test_a_node_of_a_queued_resource_with_another_name_is_known_by_the_name_that_was_typed(cloud, cli):
    """What is created is the queued resource; the call that continues is typed as the first one was."""
    api = Api(Place("emulated", endpoint=cloud.url))
    spec = {"acceleratorType": "v4-8", "runtimeVersion": "tpu-ubuntu2204-base"}
    node_spec = {"parent": LOCATION.parent, "nodeId": "a-node", "node": spec}
    api.create_queued_resource(LOCATION, "a-queue", {"tpu": {"nodeSpec": [node_spec]}}, str(uuid.uuid4()))
    cloud.wait_for("a-node", "READY")
    before = sent(cloud, "queuedResources.create")
    cloud.delay(node_CREATING=2)
    typed = Typed(cli, "reapply", "a-node", "-y", "--for", "3s")
    cloud.wait_for("a-node", "CREATING")
    cloud.freeze("a-node")
    code, said = typed.end()
    cloud.unfreeze("a-node")
    cloud.wait_for("a-node", "READY")
    cloud.delay(node_CREATING=0.02)
    plans = Path(os.environ["TPUX_HOME"]) / "pool" / "reapply"
    assert (code, [path.name for path in plans.iterdir()]) == (1, ["emulated-us-central2-b-a-node.json"]), said
    assert "is READY: an earlier call has created it again" in cli("reapply", "a-node", "-y").stderr
    assert sent(cloud, "queuedResources.create") == before + 1
    assert not list(plans.iterdir())


@pytest.mark.system
def test_a_queued_resource(cloud, cli):
    before = sent(cloud, "queuedResources.create")  # by the tests before: they share the emulator
    cli("tpu", "create", "queued", "--type", "v4-8", "--queued", "--pricing", "spot")
    cli("reapply", "queued", "-y")
    (found,) = (tpu for tpu in cli.json("tpu", "list") if tpu["name"] == "queued")
    assert (found["kind"], found["pricing"], found["state"]) == ("queued resource", "spot", "READY")
    assert sent(cloud, "queuedResources.create") - before == 2
    cli("tpu", "delete", "queued", "-y")


@pytest.mark.system
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
    refused = cli("reapply", "two", "-y", code=2).stderr
    assert "two is held by bob" in refused
    assert "bob can type: tpux release two" in refused
    assert "is the TPU of job 7" in cli("reapply", "of-a-job", "-y", code=2).stderr
    assert sent(cloud, "nodes.delete") == before
    assert "no TPU none in us-central2-b: what it was" in cli("reapply", "none", "-y", code=2).stderr


@pytest.mark.parametrize("held", [False, True])
def test_one_that_a_job_takes_while_it_asks_stays(cloud, by_hand, cli, job, held):
    before = sent(cloud, "nodes.delete")
    by_hand("one")
    cli("tpu", "register", "one")
    if held:
        cli("hold", "one")
    typed = Typed(cli, "reapply", "one")
    typed.until("[y/N]")
    assert job(name="one").steps() == "one", "a job of the user takes the hold over"
    typed.answer("y")
    code, said = typed.end()
    assert (code, sent(cloud, "nodes.delete")) == (2, before), said
    assert "one is in use by job 1 of ann" in said
    assert machines.holder_of(LEASE) == "000001"


def test_one_that_another_store_claims_while_it_asks_stays(cloud, by_hand, cli):
    before = sent(cloud, "nodes.delete")
    by_hand("one")
    typed = Typed(cli, "reapply", "one")
    typed.until("[y/N]")
    api = Api(Place("emulated", endpoint=cloud.url))
    api.update_node(LOCATION, "one", "labels", {"tpux-claim-beef": "9999999999-1-000001-bob"})
    while "tpux-claim-beef" not in str(node(cloud, "one")):
        pass
    typed.answer("y")
    code, said = typed.end()
    assert (code, sent(cloud, "nodes.delete")) == (2, before), said
    assert "one is in use by bob in another store (beef)" in said
    assert not machines.holder_of(LEASE)


def test_the_users_own_hold_remains_as_it_was(by_hand, cli):
    by_hand("one")
    cli("tpu", "register", "one")
    cli("hold", "one", "--note", "mine")
    before = machines.lease_of(LEASE)
    cli("reapply", "one", "-y")
    after = machines.lease_of(LEASE)
    assert (after["note"], after["until"]) == ("mine", before["until"])


@pytest.mark.usefixtures("cloud")
def test_the_command(by_hand, cli):
    by_hand("one")
    command_contract("reapply", ["one", "-y"], wrong=[["none"]], cli=cli)
    assert json.loads(cli("find", "--json").stdout) == []
