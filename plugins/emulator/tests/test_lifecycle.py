"""Starting, stopping and killing an emulator, and errors of its commands."""

from __future__ import annotations

import json
import os
import shutil
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from emulator_http import create, node, outcome, queue, ready
from emulator_support import QUICK, ZONE
from typer.testing import CliRunner

from tpux_emulator.cli import app
from tpux_emulator.emulator import Emulator


def emulator(home: Path, *words: str, code: int = 0, **environment: str) -> str:
    """Run a command of the emulator and return its output."""
    command = [sys.executable, "-m", "tpux_emulator", *words, "--home", str(home)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, env={**os.environ, **environment})
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout + done.stderr


def test_the_start_names_the_ssh_port_of_the_workers(tmp_path: Path) -> None:
    if shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin") is None:
        pytest.skip("no OpenSSH server")
    output = emulator(tmp_path, "start", "--detach", "--port", "0", "--ssh-port", "2299")
    try:
        assert "Its workers listen on SSH port 2299; tpux finds it by itself.\n" in output
    finally:
        emulator(tmp_path, "stop")


@pytest.mark.system
def test_a_session_at_the_command_line(tmp_path: Path) -> None:
    output = emulator(tmp_path, "start", "--detach", "--port", "0", "--no-workers")
    assert "listens on http://127.0.0.1:" in output
    try:
        facts = json.loads(emulator(tmp_path, "status", "--json"))
        cloud = Emulator(tmp_path)
        cloud.url = facts["url"]
        exports = emulator(tmp_path, "env", "--project", "p")
        assert f"export CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU={cloud.url}/" in exports
        assert f"export TPUX_GCP_ENDPOINT={cloud.url}" in exports
        emulator(tmp_path, "delay", *(f"{name}={value}s" for name, value in QUICK.items()))
        ready(cloud, "n1", "v4-16")
        rule = emulator(tmp_path, "stockout", "--zone", ZONE, "--count", "3", "--for", "5m").strip()
        shown = emulator(tmp_path, "status")
        assert "n1" in shown
        assert f"{rule} zone={ZONE} count=3 for" in shown
        emulator(tmp_path, "clear", rule)
        emulator(tmp_path, "preempt", "n1", "--after", "1h")
        assert "planned notice n1 in 3" in emulator(tmp_path, "status")
        emulator(tmp_path, "preempt", "n1")
        cloud.wait_for("n1", "PREEMPTED")
        assert "there is no node 'n2'" in emulator(tmp_path, "preempt", "n2", code=1)
        assert "'soon' is not a duration" in emulator(tmp_path, "preempt", "n1", "--after", "soon", code=2)
        log = (tmp_path / "emulator.log").read_text()
        assert "cloud    node n1: READY -> PREEMPTED" in log
        assert "requests 200 POST /v2/projects/emulated/locations/us-central2-b/nodes?nodeId=n1" in log
    finally:
        emulator(tmp_path, "stop")
    assert "no emulator is running" in emulator(tmp_path, "status", code=1)
    emulator(tmp_path, "reset")
    assert not (tmp_path / "state.db").exists()


@pytest.mark.parametrize(
    "words",
    [
        ("terminate", "n1", "--notice", "1s"), ("cut", "n1", "--worker", "0", "--how", "refuse", "--for", "5s"),
        ("restore", "n1"), ("rotate-host-key", "n1"), ("fake-state", "n1", "CREATING", "--for", "1s"),
        ("freeze", "n1", "--for", "1s"), ("unfreeze", "n1"), ("quota", "--generation", "v4", "--limit", "8"),
        ("throttle", "--count", "1"),
        ("quota", "--pricing", "spot", "--form", "exhausted"), ("forbid", "us-east1-d"), ("stockout", "--form", "pool"),
        ("error", "503", "--method", "nodes.get"),
        ("drop", "--count", "1"), ("lose", "--count", "1"), ("late", "60s"),
        ("hang", "--each", "1s"), ("slow", "1s", "--count", "1"),
        ("fail-operation", "--code", "8"),
        ("random-preemption", "--preemptions", "2", "--seed", "3"), ("suspend", "q1"),
        ("fail-queued", "q2", "--code", "9"), ("forget-queued", "q2", "--unlink"), ("clear",),
    ],
)  # fmt: skip
def test_every_fault_has_a_command(words: tuple[str, ...], commanded: Emulator) -> None:
    done = CliRunner().invoke(app, [*words, "--home", str(commanded.home.path)])
    assert done.exit_code == 0, (done.output, done.exception)


@pytest.fixture(scope="module")
def commanded(tmp_path_factory: pytest.TempPathFactory) -> Emulator:  # type: ignore[misc]
    with Emulator(tmp_path_factory.mktemp("commanded"), workers=False, delays=QUICK) as cloud:
        ready(cloud, "n1")
        for name in ("q1", "q2"):
            queue(cloud, name)
            cloud.wait_for_queued(name, "ACTIVE")
        yield cloud


def test_the_port_is_in_use(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for mode in (("--detach",), ()):
            output = emulator(tmp_path, "start", *mode, "--port", port, "--no-workers", code=1)
            assert f"cannot listen on 127.0.0.1:{port}" in output
            assert "--port" in output


def test_a_second_emulator_in_the_same_directory(make: Callable[..., Emulator]) -> None:
    cloud = make()
    for mode in (("--detach",), ()):
        output = emulator(cloud.home.path, "start", *mode, "--port", "0", "--no-workers", code=1)
        assert "already running in this directory" in output
    assert cloud.status()["pid"] == cloud.pid


@pytest.mark.parametrize("content", [b"this is not a database, but enough bytes for one" * 50, b"\0" * 4096])
def test_a_corrupt_state_file(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "state.db").write_bytes(content)
    output = emulator(tmp_path, "start", "--port", "0", "--no-workers", code=1)
    assert str(tmp_path / "state.db") in output
    assert "tpux emulator reset" in output
    CliRunner().invoke(app, ["reset", "--home", str(tmp_path)])
    with Emulator(tmp_path, workers=False) as cloud:
        assert cloud.status()["nodes"] == []


def test_a_corrupt_record(tmp_path: Path) -> None:
    with Emulator(tmp_path, workers=False, delays=QUICK) as cloud:
        ready(cloud, "n1")
    with sqlite3.connect(cloud.home.state) as state:
        state.execute("UPDATE record SET body = '{' WHERE kind = 'node'")
    state.close()
    output = emulator(cloud.home.path, "start", "--port", "0", "--no-workers", code=1)
    assert "cannot read its state" in output
    emulator(cloud.home.path, "reset")


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("settings:\n  delays:\n    node.CREATING: soon\n", ":3:5", "not a duration"),
        ("settings:\n  delays:\n    node.CREATNG: 3s\n", ":2:3", "unknown delay"),
        ("faults:\n  - effect: stockout\n    zon: x\n", ":3:5", "zon"),
        ("faults:\n  - effect: earthquake\n", ":2:5", "earthquake"),
        ("faults: [\n", ":2:1", "not valid YAML"),
        ("weather: bad\n", ":1:1", "unknown key 'weather'"),
        ("- a list\n", ":1:1", "valid dictionary"),
        ("settings:\n  events:\n    - {node: n1, event: preempt}\n", ":3:7", "after"),
    ],
)
def test_an_error_in_a_scenario(tmp_path: Path, text: str, place: str, words: str) -> None:
    scenario = tmp_path / "scenario.yaml"
    scenario.write_text(text)
    output = emulator(tmp_path / "home", "start", "--scenario", str(scenario), "--port", "0", "--no-workers", code=1)
    assert f"{scenario}{place}: " in output, output
    assert words in output


def test_a_scenario(make: Callable[..., Emulator], tmp_path: Path) -> None:
    scenario = tmp_path / "scenario.yaml"
    scenario.write_text(
        "settings:\n  delays: {node.CREATING: 100ms}\n  project_metadata: {enable-oslogin: 'TRUE'}\n"
        "  events:\n    - {node: 'train-*', event: preempt, after: 200ms, lives: 1}\n"
        "faults:\n  - {effect: stockout, name: unlucky, count: 1, for: 1h}\n"
    )
    cloud = make(scenario=scenario)
    assert outcome(cloud, create(cloud, "unlucky"))["error"]["code"] == 8
    assert "response" in outcome(cloud, create(cloud, "unlucky"))
    create(cloud, "train-1")
    cloud.wait_for("train-1", "PREEMPTED")
    assert node(cloud, "unlucky")["state"] == "READY"


def test_a_missing_scenario(tmp_path: Path) -> None:
    output = emulator(tmp_path, "start", "--scenario", str(tmp_path / "none.yaml"), "--no-workers", code=1)
    assert "cannot read the scenario" in output


@pytest.mark.parametrize("rate", ["fast", "0", "-1", "inf"])
def test_an_invalid_clock_rate(tmp_path: Path, rate: str) -> None:
    output = emulator(tmp_path, "start", "--port", "0", "--no-workers", code=1, TPUX_CLOCK_RATE=rate)
    assert f"TPUX_CLOCK_RATE is '{rate}'" in output


def test_no_sshd_on_the_machine(tmp_path: Path, root: None) -> None:
    hidden = 'mount --bind /dev/null "$(command -v sshd || echo /usr/sbin/sshd)" && exec "$@"'
    start = [sys.executable, "-m", "tpux_emulator", "start", "--port", "0", "--home", str(tmp_path)]
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", hidden, "sh", *start], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 1
    assert "no OpenSSH server" in done.stderr
    assert "apt-get install openssh-server" in done.stderr


def test_a_workers_address_is_in_use(make: Callable[..., Emulator], root: None) -> None:
    cloud = make(workers=True)
    first = ready(cloud, "n1")["networkEndpoints"][0]["accessConfig"]["externalIp"]
    head, _, last = first.rpartition(".")
    with socket.create_server((f"{head}.{int(last) + 1}", cloud.ssh_port)):
        done = outcome(cloud, create(cloud, "n2"))
    assert done["error"]["code"] == 13
    assert "Address already in use" in done["error"]["message"]
    cloud.wait_for("n2", "GONE")  # the operation fails before the node is removed
    ready(cloud, "n2")


def test_state_survives_a_kill(make: Callable[..., Emulator]) -> None:
    cloud = make()
    ready(cloud, "n1", labels={"a": "b"})
    ready(cloud, "n3")
    ready(cloud, "n4")
    cloud.preempt("n3")
    cloud.wait_for("n3", "PREEMPTED")
    cloud.stockout("us-west4-a", count=3)
    cloud.delay(node_CREATING=0.5)
    operation = create(cloud, "n2")
    queue(cloud, "q1")
    before = node(cloud, "n1")
    cloud.preempt("n4", after=2)
    cloud.kill()
    cloud.start()
    assert node(cloud, "n1") == before
    assert node(cloud, "n3")["state"] == "PREEMPTED"
    assert outcome(cloud, operation)["response"]["name"].endswith("n2")
    cloud.wait_for_queued("q1", "ACTIVE")
    cloud.wait_for("n4", "PREEMPTED")
    assert [rule["count"] for rule in cloud.status()["rules"]] == [3]  # type: ignore[union-attr,index,call-overload]


def test_it_listens_on_loopback_only(make: Callable[..., Emulator], root: None) -> None:
    cloud = make(workers=True)
    ready(cloud, "n1")
    listening = subprocess.run(["ss", "-Htlnp"], capture_output=True, text=True, check=True).stdout.splitlines()
    ours = [line.split()[3] for line in listening if f"pid={cloud.pid}," in line or f":{cloud.ssh_port} " in line]
    assert len(ours) >= 4  # the API, the metadata server, sshd on two addresses
    assert all(where.startswith("127.") for where in ours)


def test_the_fixture(tpu_emulator: Callable[..., Emulator]) -> None:
    cloud = tpu_emulator(workers=False)
    ready(cloud, "n1")
    cloud.preempt("n1")
    cloud.wait_for("n1", "PREEMPTED")
    assert next(each.method for each in cloud.requests) == "nodes.create"
