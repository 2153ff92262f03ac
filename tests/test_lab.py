"""A day of a lab: three users, six jobs, four emulated TPUs; who has which at each time is what `tpux find` says."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.test_gcp_e2e import TPUX, cloud, tpu_emulator
from tests.test_gcp_takeover import until
from tests.test_pool_e2e import DELETIONS, labels, make, pool
from tpux_emulator.emulator import Emulator

__all__ = ["cloud", "pool", "tpu_emulator"]
TPUS = {"p1": "one", "p2": "two", "p3": "three", "p4": "four"}
CONFIG = """
tpu: {{allocation_mode: pool, accelerator: v4-8}}
ssh: {{port: {port}}}
watch: {{verdict_grace: 2s, resources_every: 1s}}
command: {{cmd: 'while [ ! -e ~/done-{name} ]; do sleep 0.2; done'}}
"""


class Lab:
    """Users of one store, and what they type."""

    def __init__(self, cloud: Emulator, directory: Path) -> None:
        self.cloud, self.directory = cloud, directory
        self.names: list[str] = []

    def tpux(self, user: str, *args: str | Path, code: int = 0) -> str:
        """Type a command as a user."""
        env = {**os.environ, "TPUX_USER": user}
        done = subprocess.run([TPUX, *args], env=env, capture_output=True, text=True, timeout=200, check=False)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout

    def create(self, user: str, name: str, *more: str) -> None:
        """Create a job, which runs until `finish`."""
        config = self.directory / f"{name}.yaml"
        config.write_text(CONFIG.format(port=self.cloud.ssh_port, name=name))
        self.names.append(name)
        assert self.tpux(user, "create", config, *more).strip() == str(len(self.names))

    def finish(self, user: str, name: str) -> None:
        """Let the program of a job end."""
        self.tpux(user, "exec", name, f"touch ~/done-{name}")

    def show(self, user: str, name: str) -> dict[str, object]:
        """Return what `tpux show` says about a job."""
        found: dict[str, object] = json.loads(self.tpux(user, "show", name, "--json"))
        return found

    def why(self, user: str, name: str) -> str:
        """Return what a job waits for."""
        return str(self.show(user, name)["why"])

    def who(self) -> dict[str, str]:
        """Return who has which TPU: the user and the name of the job, or "hold"; "" for nobody."""
        found = {}
        for tpu in json.loads(self.tpux("ann", "find", "--json")):
            has = self.names[int(tpu["job"]) - 1] if tpu["job"] else "hold"
            found[tpu["alias"]] = f"{tpu['user']} {has}" if tpu["user"] else ""
            assert tpu["free"] is (not tpu["user"] and tpu["state"] == "READY")
        return found

    def until(self, *who: str) -> None:
        """Wait until p1, p2, p3 and p4 are in these hands."""
        expected = dict(zip(TPUS, who, strict=True))
        deadline = time.monotonic() + 120
        while (now := self.who()) != expected:
            assert time.monotonic() < deadline, f"{now}, not {expected}"
            time.sleep(0.3)


@pytest.fixture
def lab(pool: Emulator, tmp_path: Path):
    """A lab whose supervisors end with the test."""
    yield Lab(pool, tmp_path)
    for user in ("ann", "bob", "cy"):
        env = {**os.environ, "TPUX_USER": user}
        subprocess.run([TPUX, "supervisor", "stop"], env=env, check=False, timeout=100)


@pytest.mark.system
@pytest.mark.timeout(900)
def test_a_day_of_a_lab(lab: Lab, pool: Emulator, tmp_path: Path) -> None:
    make(pool, *TPUS.values())
    for alias, name in TPUS.items():
        lab.tpux("ann", "tpu", "register", name, "--alias", alias)

    # In the morning cy profiles on p4; the others take what is free, and two jobs wait in their order.
    lab.tpux("cy", "hold", "p4", "--for", "1h", "--note", "profiling")
    lab.create("ann", "a")
    lab.until("ann a", "", "", "cy hold")
    lab.create("bob", "b")
    lab.until("ann a", "bob b", "", "cy hold")
    lab.create("cy", "c", "limits.hours=0.02", "limits.grace=1s")
    lab.until("ann a", "bob b", "cy c", "cy hold")
    lab.create("ann", "d")
    until(lambda: "place 1 in the queue" in lab.why("ann", "d"))
    assert "p4 is held by cy (profiling)" in lab.why("ann", "d") or "..." in lab.why("ann", "d")
    lab.create("bob", "e")
    until(lambda: "place 2 in the queue after job 4 of ann" in lab.why("bob", "e"))

    # cy's job takes cy's hold, before those that came first: it names the TPU.
    lab.create("cy", "f", "--tpu", "p4")
    lab.until("ann a", "bob b", "cy c", "cy f")

    # At 0.02 machine hours cy's first job is stopped, and ann's gets its TPU.
    until(lambda: lab.show("cy", "c")["state"] == "stopped")
    until(lambda: "stopped by limits.hours" in lab.why("cy", "c"))  # at first: removing the claim
    lab.until("ann a", "bob b", "ann d", "cy f")

    # Bob shuts his laptop: b runs on, and keeps its TPU.
    until(lambda: lab.show("bob", "b")["state"] == "running")
    status = json.loads(lab.tpux("bob", "supervisor", "status", "--json"))
    os.kill(status["pid"], signal.SIGKILL)

    # A preemption: a gives p1 back and waits, behind e, which does not delay it for longer than five minutes.
    until(lambda: lab.show("ann", "a")["state"] == "running")
    pool.preempt("one")
    until(lambda: "place 2 in the queue after job 5 of bob" in lab.why("ann", "a"))
    lab.until("", "bob b", "ann d", "cy f")
    until(lambda: lab.show("cy", "f")["state"] == "running")
    lab.finish("cy", "f")
    lab.until("", "bob b", "ann d", "")
    queued = tmp_path / "tpux" / "pool" / "queue" / "000005.json"
    os.utime(queued, (0, 0))
    lab.until("", "bob b", "ann d", "ann a")

    # In the evening bob is back: b has run on, and e gets the next one.
    assert lab.show("bob", "b")["attempt"] == 1
    until(lambda: "place 1 in the queue" in lab.why("bob", "e"))
    until(lambda: lab.show("ann", "d")["state"] == "running")
    lab.finish("ann", "d")
    lab.until("", "bob b", "bob e", "ann a")
    for user, name in (("bob", "b"), ("bob", "e"), ("ann", "a")):
        until(lambda user=user, name=name: lab.show(user, name)["state"] == "running")
        lab.finish(user, name)
    lab.until("", "", "", "")
    users = ["ann", "bob", "cy"] * 2
    ends = {name: lab.show(user, name)["state"] for user, name in zip(users, "abcdef", strict=True)}
    assert ends == {"a": "succeeded", "b": "succeeded", "c": "stopped", **dict.fromkeys("def", "succeeded")}
    assert [labels(pool, name) for name in ("two", "three", "four")] == [
        {"team": name} for name in ("two", "three", "four")
    ]
    assert [request for request in pool.requests if request.method in DELETIONS] == []
