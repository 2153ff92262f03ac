"""The example for Google Cloud on the emulator: four SSH workers, preempted once, finished, then all nodes deleted."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tpux.model.events import Event, Warned, WorkerUpdated
from tpux.store import Store
from tpux_emulator.emulator import Emulator
from tpux_emulator.testing import tpu_emulator
from tpux_gcp.errors import LOGIN_COMMAND

__all__ = ["tpu_emulator"]
EXAMPLE = Path(__file__).parents[1] / "examples" / "v4-32-spot.yaml"
TPUX = Path(sys.executable).with_name("tpux")


def _unavailable() -> str:
    if sys.platform != "linux":
        return "workers need Linux"
    if os.geteuid() != 0:
        return "isolated workers need root"
    return "" if shutil.which("sshd") or Path("/usr/sbin/sshd").exists() else "sshd is not installed"


@pytest.fixture
def cloud(tpu_emulator: Callable[..., Emulator], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Emulator]:
    if reason := _unavailable():
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    monkeypatch.setenv("TPUX_HOME", str(tmp_path / "tpux"))
    monkeypatch.setenv("TPUX_USER", "tester")
    for name in ("GOOGLE_CLOUD_PROJECT", "CLOUDSDK_CORE_PROJECT", "TPUX_GCP_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path / "gcloud"))
    yield tpu_emulator()
    subprocess.run([TPUX, "supervisor", "stop"], check=False, timeout=100)


@pytest.mark.process
@pytest.mark.parametrize(
    ("mode", "notice", "on_sigterm"),
    [
        pytest.param("tpu-vm", 30, "exit 0", id="node-saves"),
        pytest.param("queued-resources", 30, "exit 143", id="queued-saves", marks=pytest.mark.system),
        pytest.param("queued-resources", 0, "exit 143", id="queued-without-notice", marks=pytest.mark.system),
    ],
)
def test_the_example_is_preempted_once_and_finishes(
    cloud: Emulator, tmp_path: Path, mode: str, notice: float, on_sigterm: str
) -> None:
    config = tmp_path / "v4-32-spot.yaml"
    text = EXAMPLE.read_text().replace("http://127.0.0.1:9470", cloud.url)
    text = text.replace("allocation_mode: tpu-vm", f"allocation_mode: {mode}")
    # The first attempt runs until it is preempted, even on a slow machine.
    text = text.replace("seq 1 300", "seq 1 10").replace(
        "sleep 1", "sleep 0.3; while [ $step$TPUX_ATTEMPT = 51 ]; do sleep 0.1; done"
    )
    text = text.replace("cmd: |\n", f"cmd: |\n    trap 'echo saved by $TPUX_WORKER; {on_sigterm}' TERM\n")
    config.write_text(text)
    run = subprocess.Popen([TPUX, "run", config], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert run.stdout is not None
    lines = []
    for line in run.stdout:
        lines.append(line)
        sys.stdout.write(line)  # shown by pytest if the test fails
        if "step 3" in line and sum("step 3" in before for before in lines) == 4:
            cloud.preempt("v4-32-spot-000001", notice=notice)
    assert run.wait(100) == 0, "".join(lines)
    shown = json.loads(subprocess.run([TPUX, "show", "1", "--json"], check=True, capture_output=True).stdout)
    assert (shown["state"], shown["attempt"], shown["stage"], shown["preemptions"]) == ("succeeded", 2, 0, 1)
    assert _pinned(tmp_path / "tpux" / "jobs" / "tester" / "000001" / "events.jsonl") == 8
    hosts = {line.split(" on ")[1] for line in lines if " on t1v-" in line}
    assert len(hosts) == 8  # four workers, and four new ones
    assert sum("step 10" in line for line in lines) == 4
    saved = {line.strip() for line in lines if "saved by" in line}  # bash's new child may run the trap too
    assert len(saved) == (4 if notice else 0), "the program got SIGTERM on each worker"
    assert any("preemption announced on worker" in line for line in lines) is bool(notice)
    _wait_until_everything_is_deleted(cloud)


README = EXAMPLE.parents[1] / "README.md"
_UID = 4242
# In namespaces of its own, so that this machine keeps its users: the process is user 4242, `reader`, who is not root.
_AS_USER = f'mount --bind "$1" /etc/passwd && shift && exec unshare --user --map-user={_UID} --map-group={_UID} -- "$@"'


def _as_user(place: Path) -> list[str]:
    """Return the words before a command that is to run as a user who is not root, with the home directory `place`."""
    if os.geteuid() != 0:
        return ["env", f"HOME={place}"]
    passwd = place / "passwd"
    passwd.write_text(Path("/etc/passwd").read_text() + f"reader:x:{_UID}:{_UID}::{place}:/bin/bash\n")
    words = ["unshare", "--mount", "sh", "-c", _AS_USER, "sh", str(passwd), "env", f"HOME={place}"]
    tried = subprocess.run([*words, "id", "-un"], capture_output=True, text=True, check=False)
    if tried.stdout.strip() != "reader":
        pytest.skip(f"no user namespaces here: {tried.stderr.strip()}")
    return words


@pytest.mark.system
@pytest.mark.parametrize("who", ["root", "user"])
@pytest.mark.usefixtures("cloud")  # its environment; the README starts an emulator of its own
def test_the_commands_of_the_readme(who: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A shell on a terminal runs them in their order, with a free port, and waits where a user reads."""
    block = next(part for part in README.read_text().split("```") if "tpux emulator start" in part)
    commands = [line.partition(" #")[0].strip() for line in block.splitlines()[1:]]
    (tmp_path / "examples").mkdir()
    (tmp_path / "examples" / EXAMPLE.name).write_text(EXAMPLE.read_text())
    until = 'timeout 100 sh -c "until tpux list --json | grep -q {}; do sleep 0.5; done"'
    changed = {
        "tpux emulator start --detach": "tpux emulator start --detach --port 0",
        'eval "$(tpux emulator env)"': 'eval "$(tpux emulator env)"\n'
        f"sed -i s,http://127.0.0.1:9470,$TPUX_GCP_ENDPOINT, examples/{EXAMPLE.name}",
        "tpux tpu list": f"{until.format('running')}\ntpux tpu list",
        "tpux ssh v4-32-spot --worker 1": "tpux ssh v4-32-spot --worker 1 <<<'echo shell in $(pwd)'",
        "tpux logs -f v4-32-spot": until.format("'attempt.: 2'")
        + "\ntimeout --signal=INT 20 tpux logs -f v4-32-spot || [ $? = 124 ]",
    }
    assert changed.keys() <= set(commands)
    monkeypatch.setenv("PATH", f"{TPUX.parent}:{os.environ['PATH']}")
    (tmp_path / "typed").write_text("\n".join(changed.get(command, command) for command in commands))
    terminal = ["script", "--quiet", "--return", "--command", "bash -e typed", "/dev/null"]
    words = _as_user(tmp_path) if who == "user" else []
    typed = subprocess.run(
        [*words, *terminal],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert typed.returncode == 0, typed.stdout + typed.stderr
    assert re.search(r"^demo\b", typed.stdout, re.MULTILINE), typed.stdout
    assert "shell in /" in typed.stdout
    assert "attempt 2" in typed.stdout


# Stands for `gcloud compute start-iap-tunnel INSTANCE PORT --listen-on-stdin`: connects to the only VM of the emulator.
TUNNEL = """#!/usr/bin/env python3
import json, os, socket, sys, threading, urllib.request
instance, port = sys.argv[3:5]
zone = f"{os.environ['CLOUDSDK_PYTHON']}/v2/projects/emulated/locations/us-central2-b"
node = json.load(urllib.request.urlopen(f"{zone}/nodes"))["nodes"][0]
assert instance.startswith("t1v-n-"), instance
assert "accessConfig" not in node["networkEndpoints"][0], "the VM has no external address"
sock = socket.create_connection((node["networkEndpoints"][0]["ipAddress"], int(port)))
def upload():
    while data := os.read(0, 65536):
        sock.sendall(data)
    sock.shutdown(socket.SHUT_WR)
threading.Thread(target=upload, daemon=True).start()
while data := sock.recv(65536):
    os.write(1, data)
"""


@pytest.mark.system
def test_a_vm_without_external_address_and_with_os_login(
    cloud: Emulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "gcloud").write_text(TUNNEL)
    (tools / "gcloud").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    monkeypatch.setenv("CLOUDSDK_PYTHON", cloud.url)  # one of the variables that reach gcloud
    cloud.change(project_metadata={"enable-oslogin": "TRUE"})
    config = tmp_path / "train.yaml"
    config.write_text(
        "tpu: {allocation_mode: tpu-vm, accelerator: v4-8, zone: us-central2-b, internal_ips: true, endpoint: "
        f"'{cloud.url}'}}\nssh: {{iap: true}}\n"
        "command: {cmd: 'echo $(whoami) on $(hostname)'}\n"
    )
    done = subprocess.run([TPUX, "run", config], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^\[0\] tpux_example_com on t1v-n-", done.stdout, re.MULTILINE), done.stdout
    assert "no external addresses" not in done.stderr, "the warning is for machines that nothing reaches"
    _wait_until_everything_is_deleted(cloud)


def _pinned(events: Path) -> int:
    """Return how many workers were allocated with their published host keys."""
    history = [json.loads(line) for line in events.read_text().splitlines()]
    workers = [worker for event in history if event["type"] == "allocated" for worker in event["allocation"]["workers"]]
    return sum("ssh-ed25519 " in worker["details"].get("host_keys", "") for worker in workers)


def _wait_until_everything_is_deleted(cloud: Emulator) -> None:
    deadline = time.monotonic() + 100
    while (status := cloud.status())["nodes"] or status["queuedResources"]:
        assert time.monotonic() < deadline, status["nodes"]
        time.sleep(0.1)


# --- the place of a job: what its shell said, whatever a later shell says ---------------------------


@pytest.fixture
def clouds(
    tpu_emulator: Callable[..., Emulator], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[tuple[Emulator, Emulator]]:
    """Two emulators whose nodes stay in CREATING, and a shell with the endpoint of the first."""
    for name in [name for name in os.environ if name.startswith(("GOOGLE_", "CLOUDSDK_", "TPUX_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("TPUX_HOME", str(tmp_path / "tpux"))
    monkeypatch.setenv("TPUX_USER", "tester")
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path / "gcloud"))
    slow = {"node.CREATING": 10_000, "node.DELETING": 0.1}
    first, second = (tpu_emulator(workers=False, delays=slow) for _ in range(2))
    monkeypatch.setenv("TPUX_GCP_ENDPOINT", first.url)
    config = "tpu: {allocation_mode: tpu-vm, accelerator: v4-8, zone: us-central2-b}\ncommand: {cmd: 'true'}\n"
    (tmp_path / "train.yaml").write_text(config)
    yield first, second
    _tpux("supervisor", "stop")


def _tpux(*args: str | Path) -> str:
    done = subprocess.run([TPUX, *args], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def _until_nodes(cloud: Emulator, count: int) -> list[str]:
    """Wait until a cloud has so many nodes, and return their names."""
    deadline = time.monotonic() + 100
    while len(nodes := cloud.status()["nodes"]) != count:
        assert time.monotonic() < deadline, nodes
        time.sleep(0.1)
    return [node["name"] for node in nodes]


@pytest.mark.system
def test_a_later_shell_with_another_endpoint_and_project_releases_the_jobs_tpu(
    clouds: tuple[Emulator, Emulator], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first, second = clouds
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "a")
    _tpux("create", tmp_path / "train.yaml")
    [name] = _until_nodes(first, 1)
    assert name.startswith("projects/a/")
    _tpux("supervisor", "stop")
    monkeypatch.setenv("TPUX_GCP_ENDPOINT", second.url)
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "b")
    _tpux("create", tmp_path / "train.yaml", "job.name=of-b")
    [of_second] = _until_nodes(second, 1)
    assert of_second.startswith("projects/b/")
    _tpux("delete", "1", "-y")
    assert _until_nodes(first, 0) == []
    assert _until_nodes(second, 1) == [of_second], "of another cloud, and another project"
    monkeypatch.setenv("TPUX_GCP_ENDPOINT", first.url)
    assert "differ" not in _tpux("delete", "2", "-y"), "the supervisor's endpoint is of no importance"
    assert _until_nodes(second, 0) == []


@pytest.mark.system
def test_a_supervisor_in_a_hostile_environment_works(
    clouds: tuple[Emulator, Emulator], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first, second = clouds
    (tmp_path / "hostile").mkdir()
    hostile = {
        "PATH": os.environ["PATH"], "HOME": str(tmp_path / "hostile"), "TPUX_HOME": str(tmp_path / "tpux"),
        "TPUX_USER": "tester", "TPUX_GCP_ENDPOINT": second.url, "GOOGLE_CLOUD_PROJECT": "b",
        "GOOGLE_APPLICATION_CREDENTIALS": "/nowhere", "GOOGLE_CLOUD_QUOTA_PROJECT": "b",
        "GOOGLE_API_USE_CLIENT_CERTIFICATE": "true", "GOOGLE_API_USE_MTLS_ENDPOINT": "always",
        "GOOGLE_CLOUD_UNIVERSE_DOMAIN": "example.org", "CLOUDSDK_CORE_PROJECT": "b",
        "CLOUDSDK_COMPUTE_ZONE": "us-east1-d", "CLOUDSDK_CONFIG": str(tmp_path / "hostile"),
    }  # fmt: skip
    _tpux("create", tmp_path / "train.yaml")
    _until_nodes(first, 1)
    _tpux("supervisor", "stop")
    (tmp_path / "tpux/supervisor/tester/stop").unlink()  # or it would end at once
    with subprocess.Popen([sys.executable, "-m", "tpux.supervisor"], env=hostile) as supervisor:
        deadline = time.monotonic() + 100
        while not json.loads(_tpux("supervisor", "status", "--json"))["running"]:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        _tpux("create", tmp_path / "train.yaml")
        assert {name.split("/")[1] for name in _until_nodes(first, 2)} == {"emulated"}
        _tpux("delete", "1", "2", "-y")
        assert supervisor.wait(100) == 0
    assert _until_nodes(first, 0) == []
    assert second.requests == []


@pytest.mark.system
def test_a_job_is_created_in_the_place_that_preflight_asked(
    clouds: tuple[Emulator, Emulator], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first, _ = clouds
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "a")
    _tpux("create", tmp_path / "train.yaml")
    _until_nodes(first, 1)
    paths = " ".join(request.path for request in first.requests)
    assert f"tpu-vm.project: a, tpu-vm.endpoint: {first.url}" in _tpux("show", "1")
    assert set(re.findall(r"/projects/([^/?\s]+)", paths)) == {"a"}
    _tpux("delete", "1", "-y")


# --- release: what was stored is enough, and nothing is called released that may still appear ---------------


@pytest.mark.system
def test_a_file_that_a_flag_names_is_copied_when_the_job_is_created(
    clouds: tuple[Emulator, Emulator], tmp_path: Path
) -> None:
    cloud, _ = clouds
    (tmp_path / "boot.sh").write_text("echo booted\n")
    config = (tmp_path / "train.yaml").read_text().replace("tpu: {", "tpu: {flags: [FLAG], ", 1)
    flag = "--metadata-from-file=startup-script=boot.sh"
    (tmp_path / "train.yaml").write_text(config.replace("FLAG", flag))
    _tpux("create", tmp_path / "train.yaml")
    (tmp_path / "boot.sh").unlink()
    _until_nodes(cloud, 1)
    [sent] = [request for request in cloud.requests if request.method == "nodes.create"]
    assert "\necho booted\n" in sent.body["metadata"]["startup-script"]
    _tpux("delete", "1", "-y")
    assert _until_nodes(cloud, 0) == []
    failed = subprocess.run([TPUX, "create", tmp_path / "train.yaml"], capture_output=True, text=True, timeout=200)
    assert (failed.returncode, "file not found" in failed.stderr, "boot.sh" in failed.stderr) == (2, True, True)


@pytest.mark.system
def test_machines_are_released_although_a_plugin_and_a_secret_of_the_job_are_gone(
    clouds: tuple[Emulator, Emulator], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cloud, _ = clouds
    info = tmp_path / "site" / "gone-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: gone\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[tpux]\ngone = gone\n")
    module = "from tpux import hookimpl\n@hookimpl\ndef setup():\n    return iter(())\n"
    (tmp_path / "site" / "gone.py").write_text(module)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    monkeypatch.setenv("TPU", "mine")
    monkeypatch.setenv("TPUX_CLOCK_RATE", "10")
    name, modules = "tpu.name=${env:TPU}", "setup.modules=[gone]"
    _tpux("create", tmp_path / "train.yaml", name, modules)
    _until_nodes(cloud, 1)
    rule = cloud.error(503)
    _tpux("stop", "1", "--release", "--no-wait")
    events = tmp_path / "tpux/jobs/tester/000001/events.jsonl"
    deadline = time.monotonic() + 100
    while '"release-started"' not in events.read_text():
        assert time.monotonic() < deadline, events.read_text()
        time.sleep(0.1)
    _tpux("supervisor", "stop")
    shutil.rmtree(tmp_path / "site")
    monkeypatch.delenv("TPU")
    (tmp_path / "tpux/jobs/tester/000001/secrets.json").unlink()
    cloud.clear(rule)
    _tpux("supervisor", "start")
    _tpux("delete", "1", "-y")
    assert _until_nodes(cloud, 0) == []


@pytest.mark.system
@pytest.mark.parametrize("mode", ["tpu-vm", "queued-resources"])
def test_a_creation_that_takes_effect_after_the_job_was_deleted_leaves_nothing(
    clouds: tuple[Emulator, Emulator], tmp_path: Path, mode: str
) -> None:
    cloud, _ = clouds
    cloud.late(20)
    _tpux("create", tmp_path / "train.yaml", f"tpu.allocation_mode={mode}")
    _until_requested(cloud, "create")
    said = _tpux("delete", "1", "-y")
    assert re.search(r"job 1: release pending until \d\d:\d\d: the creation of .* was not answered", said), said
    assert "the supervisor deletes the job after that" in said
    assert _tpux("list", "--json") != "[]\n"
    # The next supervisor knows it from the disk.
    os.kill(json.loads(_tpux("supervisor", "status", "--json"))["pid"], 9)
    _tpux("list")
    _until_requested(cloud, "delete")
    assert _until_nodes(cloud, 0) == []
    deadline = time.monotonic() + 100
    while json.loads(_tpux("list", "--json")):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    status = cloud.status()
    assert (status["nodes"], status["queuedResources"]) == ([], [])


@pytest.mark.system
@pytest.mark.parametrize(
    ("mode", "command"), [("tpu-vm", ("delete", "1", "-y")), ("queued-resources", ("stop", "1", "--release"))]
)
def test_a_creation_that_is_cut_off_and_takes_effect_later_leaves_nothing(
    clouds: tuple[Emulator, Emulator],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    mode: str,
    command: tuple[str, ...],
) -> None:
    """The API does not answer for more than a minute; the stop replaces the process that waits for it."""
    cloud, _ = clouds
    monkeypatch.setenv("TPUX_CLOCK_RATE", "20")
    cloud.slow(40, "*.create", count=1)
    _tpux("create", tmp_path / "train.yaml", f"tpu.allocation_mode={mode}")
    blocked = f"plugin {mode} (tpux-plugin-gcp 0.1.0) has not returned from provision for more than a minute"
    deadline = time.monotonic() + 100
    while json.loads(_tpux("show", "1", "--json"))["why"] != blocked:
        assert time.monotonic() < deadline, _tpux("show", "1")
        time.sleep(0.1)
    assert "release pending until" in _tpux(*command) + _tpux("show", "1")
    log = (tmp_path / "tpux/supervisor/tester/log").read_text()
    assert "job 000001: its turn did not return, and is ended with this process" in log
    assert not any(request.method.endswith(".create") for request in cloud.requests), "it has not taken effect"
    _until_requested(cloud, "create")
    if command[0] == "stop":
        _tpux("delete", "1", "-y")
    deadline = time.monotonic() + 100
    while json.loads(_tpux("list", "--json")):
        assert time.monotonic() < deadline, _tpux("show", "1")
        time.sleep(0.2)
    status = cloud.status()
    assert (status["nodes"], status["queuedResources"]) == ([], [])
    assert any(request.method.endswith(".delete") for request in cloud.requests)


def _until_requested(cloud: Emulator, verb: str) -> None:
    deadline = time.monotonic() + 100
    while not any(request.method.endswith(f".{verb}") for request in cloud.requests):
        assert time.monotonic() < deadline, f"no {verb}"
        time.sleep(0.1)


def _until_event(kind: type[Event]) -> None:
    deadline = time.monotonic() + 100
    while not any(isinstance(event, kind) for event, _ in Store().record("000001").events()):
        assert time.monotonic() < deadline, f"no {kind.__name__}"
        time.sleep(0.1)


def test_preflight_says_that_nothing_listens_at_the_endpoint(
    clouds: tuple[Emulator, Emulator], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TPUX_GCP_ENDPOINT", "http://127.0.0.1:9")
    done = subprocess.run([TPUX, "preflight", tmp_path / "train.yaml"], capture_output=True, text=True, timeout=200)
    said = done.stdout + done.stderr
    assert done.returncode == 0, "it may listen when the job needs it"
    assert "warning: tpu: not checked: nothing listens at http://127.0.0.1:9 (tpu.endpoint): " in said
    assert "tpux emulator start --detach" in said
    assert "HTTPConnectionPool" not in said


@pytest.mark.system
@pytest.mark.parametrize(
    ("fault", "why"), [("503", "the TPU API answered 503"), ("drop", "the TPU API does not answer")]
)
def test_a_job_is_created_while_the_api_does_not_answer(
    clouds: tuple[Emulator, Emulator], tmp_path: Path, fault: str, why: str
) -> None:
    cloud, _ = clouds
    rule = cloud.drop() if fault == "drop" else cloud.error(int(fault))
    assert f"not checked: {why}" in _tpux("create", tmp_path / "train.yaml")
    _until_why(why)
    cloud.clear(rule)
    _until_nodes(cloud, 1)
    _tpux("delete", "1", "-y")
    assert _until_nodes(cloud, 0) == []


@pytest.mark.system
def test_a_job_goes_on_once_its_login_is_renewed(clouds: tuple[Emulator, Emulator], tmp_path: Path) -> None:
    cloud, _ = clouds
    _tpux("create", tmp_path / "train.yaml")
    _until_nodes(cloud, 1)
    rule = cloud.error(401)
    _until_event(Warned)
    _until_why("waiting until the login is renewed")
    state = Store().record("000001").refresh()
    assert (state.state, state.hint) == ("provisioning", LOGIN_COMMAND)
    assert LOGIN_COMMAND in _tpux("show", "1")
    _tpux("stop", "1", "--release", "--no-wait")
    _until_why("not released yet")
    cloud.clear(rule)
    assert _until_nodes(cloud, 0) == []


def _until_why(text: str) -> None:
    deadline = time.monotonic() + 100
    while text not in (why := json.loads(_tpux("show", "1", "--json"))["why"]):
        assert time.monotonic() < deadline, why
        time.sleep(0.2)


# --- a VM that restarts ------------------------------------------------------------------------------


@pytest.mark.system
def test_a_worker_that_reboots_fails_the_attempt_and_the_next_one_runs_on_the_same_machines(
    cloud: Emulator, tmp_path: Path
) -> None:
    port = "" if cloud.ssh_port == 22 else f"ssh: {{port: {cloud.ssh_port}}}\n"
    (tmp_path / "wait.yaml").write_text(
        f"tpu: {{allocation_mode: tpu-vm, accelerator: v4-16, zone: us-central2-b, name: n1,"
        f" endpoint: '{cloud.url}'}}\njob: {{remote_user: ann, rule: resume}}\n{port}"
        "command: {cmd: 'echo begun; until [ -e ~/go ]; do sleep 0.2; done; echo finished', grace_period: 1s}\n"
    )
    _tpux("create", tmp_path / "wait.yaml")
    _until_output("begun")
    _tpux("exec", "1", "--", "touch", "go.later")
    cloud.reboot("n1", 1)
    deadline = time.monotonic() + 200
    while (shown := json.loads(_tpux("show", "1", "--json")))["attempt"] != 2:
        assert time.monotonic() < deadline, shown["failure"]
        time.sleep(0.2)
    _tpux("exec", "1", "--", "mv", "go.later", "go")
    _tpux("wait", "1")
    assert json.loads(_tpux("show", "1", "--json"))["preemptions"] == 0
    assert [each.method for each in cloud.requests].count("nodes.create") == 1
    assert "the machine was restarted" in _tpux("show", "1")
    _wait_until_everything_is_deleted(cloud)


# --- a VM that was rebuilt has another host key -----------------------------------------------------


@pytest.mark.system
def test_a_new_host_key_that_the_cloud_publishes_is_accepted_and_another_one_is_not(
    cloud: Emulator, tmp_path: Path
) -> None:
    port = "" if cloud.ssh_port == 22 else f"ssh: {{port: {cloud.ssh_port}}}\n"
    (tmp_path / "wait.yaml").write_text(
        f"tpu: {{allocation_mode: tpu-vm, accelerator: v4-8, zone: us-central2-b, name: n1, endpoint: '{cloud.url}'}}\n"
        f"job: {{remote_user: ann}}\n{port}"
        "command: {cmd: 'echo begun; until [ -e ~/go ]; do sleep 0.2; done; echo finished'}\n"
    )
    _tpux("create", tmp_path / "wait.yaml")
    _until_output("begun")
    cloud.rotate_host_key("n1")
    assert "yes" in _tpux("exec", "1", "--", "echo", "yes")
    _until_event(WorkerUpdated)  # OpenSSH gets the keys that the supervisor has saved
    assert "again" in _tpux("ssh", "1", "--", "echo", "again")
    cloud.rotate_host_key("n1", published=False)
    for words in (("exec", "1", "--", "true"), ("ssh", "1", "--", "true")):
        refused = subprocess.run([TPUX, *words], capture_output=True, text=True, timeout=200)
        assert refused.returncode != 0
        assert "host key" in refused.stderr.lower(), refused.stderr
    cloud.rotate_host_key("n1")
    _tpux("exec", "1", "--", "touch", "go")
    _until_output("finished")
    _tpux("wait", "1")
    assert json.loads(_tpux("show", "1", "--json"))["attempt"] == 1
    _wait_until_everything_is_deleted(cloud)


def _until_output(text: str) -> None:
    deadline = time.monotonic() + 100
    while text not in subprocess.run([TPUX, "logs", "1"], capture_output=True, text=True, timeout=200).stdout:
        assert time.monotonic() < deadline, _tpux("show", "1")
        time.sleep(0.2)


# --- orphans ----------------------------------------------------------------------------------------


@pytest.mark.system
def test_a_tpu_of_a_job_that_is_gone_is_reported_and_not_deleted(
    clouds: tuple[Emulator, Emulator], tmp_path: Path
) -> None:
    cloud, _ = clouds
    _tpux("create", tmp_path / "train.yaml")
    _tpux("create", tmp_path / "train.yaml", "job.name=held")
    _until_nodes(cloud, 2)
    _tpux("supervisor", "stop")
    shutil.rmtree(tmp_path / "tpux/jobs/tester/000001")
    (tmp_path / "tpux/supervisor/tester/orphans-begun").unlink(missing_ok=True)  # the next search is due
    deadline = time.monotonic() + 100
    while "belongs to no job" not in (said := _tpux("list")):
        assert time.monotonic() < deadline, said
        time.sleep(0.2)
    [line] = [line for line in said.splitlines() if "belongs to no job" in line]
    name = line.partition(" ")[0]
    assert name.startswith("train-000001-")
    assert line.startswith(f"{name} in us-central2-b of project emulated (v4-8, node {name} is CREATING")
    assert "held-000002" not in line
    assert len(_until_nodes(cloud, 2)) == 2
    endpoint, _, command = line.rpartition(": ")[2].partition(" tpux ")
    assert endpoint == f"TPUX_GCP_ENDPOINT={cloud.url}"
    _tpux(*command.split(), "-y")
    assert [name.rpartition("/")[2].rpartition("-")[0] for name in _until_nodes(cloud, 1)] == ["held-000002"]
    _tpux("supervisor", "start")
    _tpux("delete", "2", "-y")
