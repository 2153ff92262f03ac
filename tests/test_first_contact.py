"""`scripts/first-contact.sh` records the API's answers, and deletes what it creates however it ends."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tpux_emulator.emulator import Emulator

ROOT = Path(__file__).parent.parent
SCRIPT = ROOT / "scripts/first-contact.sh"
CREATIONS = ("nodes.create", "queuedResources.create")


def command(cloud: Emulator, directory: Path) -> list[str | Path]:
    place = ["--project", "project-of-ann", "--zone", "us-central2-b", "--endpoint", cloud.url]
    return [SCRIPT, directory, *place]


@contextmanager
def started(cloud: Emulator, directory: Path, answers: str) -> Iterator[subprocess.Popen[str]]:
    """Start a recording whose questions have been answered; it has its own process group, as in a terminal."""
    script = subprocess.Popen(
        command(cloud, directory), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        answer(script, answers)
        yield script
    finally:
        for pid in [script.pid, *children(script)]:
            kill(pid)
        script.communicate()


def answer(script: subprocess.Popen[str], answers: str) -> None:
    assert script.stdin
    script.stdin.write(answers)
    script.stdin.flush()


def children(script: subprocess.Popen[str]) -> list[int]:
    path = Path(f"/proc/{script.pid}/task/{script.pid}/children")
    return [int(pid) for pid in path.read_text().split()] if path.exists() else []


def kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def wait_until(reached: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def left(cloud: Emulator) -> list[object]:
    status = cloud.status()
    return [*status["nodes"], *status["queuedResources"]]


def created(cloud: Emulator) -> list[str]:
    return [each.method for each in cloud.requests if each.method in CREATIONS]


@pytest.fixture(scope="module")
def recorded(tpu_emulators, tmp_path_factory):
    """Return an emulator, the directory of a whole recording from it, and what was printed."""
    cloud = tpu_emulators(workers=False)
    cloud.delay(node_CREATING=1)  # so that the PATCH and the DELETE find it in this state
    directory = tmp_path_factory.mktemp("first") / "it's here"
    done = subprocess.run(command(cloud, directory), input="yes\n" * 4, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    return cloud, directory, done.stdout


def exchanges(directory: Path, step: str) -> list[dict]:
    return [json.loads(path.read_text()) for path in sorted(directory.glob(f"*-{step}.json"))]


@pytest.mark.system
def test_every_creation_is_asked_for_and_everything_is_deleted(recorded):
    cloud, directory, output = recorded
    assert output.count("yes or no") == 4 == len(created(cloud))
    assert not left(cloud)
    assert output.endswith("deleted: the API answers 404 for everything that was created, and lists none of it\n")
    assert not (directory / "to-delete.jsonl").exists()


def test_the_answers_are_recorded_without_identifiers(recorded):
    _, directory, _ = recorded
    states = [each["answer"].get("state", each["status"]) for each in exchanges(directory, "wait-ready")]
    assert states == ["CREATING", "READY"]
    assert exchanges(directory, "wrong-accelerator")[0]["status"] == 400
    assert exchanges(directory, "get-in-creating")[0]["answer"]["state"] == "CREATING"
    assert exchanges(directory, "wait-deleted")[-1]["status"] == 404
    operations = exchanges(directory, "operations-after-create")[0]["answer"]["operations"]
    assert "projects/PROJECT/locations/us-central2-b/nodes/first-contact-n" in [
        each["metadata"]["target"] for each in operations
    ]
    text = "".join(path.read_text() for path in directory.iterdir())
    assert "project-of-ann" not in text
    assert not re.search(r"\b\d+\.\d+\.\d+\.\d+\b|operation-|AAAA|@developer|\d{10}", text)


def test_what_others_own_is_left_out(tpu_emulator, tmp_path):
    cloud = tpu_emulator(workers=False)
    environment = {**os.environ, **cloud.environment(project="project-of-ann")}
    create = ["tpu", "create", "of-somebody-else", "--type", "v4-8", "--zone", "us-central2-b"]
    subprocess.run([sys.executable, "-m", "tpux", *create], env=environment, check=True, capture_output=True)
    done = subprocess.run(command(cloud, tmp_path / "first"), input="no\n", capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout
    assert "of-somebody-else" not in "".join(path.read_text() for path in (tmp_path / "first").iterdir())
    assert len(created(cloud)) == len(left(cloud)) == 1


def test_without_an_answer_nothing_is_created(tpu_emulator, tmp_path):
    cloud = tpu_emulator(workers=False)
    done = subprocess.run(
        command(cloud, tmp_path / "first"), stdin=subprocess.DEVNULL, capture_output=True, timeout=100
    )
    assert done.returncode == 0, done.stdout
    assert not created(cloud)


@pytest.mark.parametrize(
    "end",
    [
        pytest.param(lambda script: os.kill(script.pid, signal.SIGINT), id="kill -INT"),
        pytest.param(lambda script: os.killpg(script.pid, signal.SIGINT), id="Ctrl-C"),
        pytest.param(lambda script: os.kill(script.pid, signal.SIGHUP), id="terminal closed"),
        pytest.param(lambda script: kill(children(script)[0]), id="recorder killed"),
    ],
)
def test_an_interruption_deletes_what_was_created(tpu_emulator, tmp_path, end):
    cloud = tpu_emulator(workers=False)
    cloud.delay(node_CREATING=3600, node_DELETING=1)
    with started(cloud, tmp_path / "first", "yes\n" * 4) as script:
        wait_until(lambda: any(each.path.endswith("-n") for each in cloud.requests))
        end(script)
        wait_until(lambda: any(each.path.endswith("-n") and each.verb == "DELETE" for each in cloud.requests))
        os.killpg(script.pid, signal.SIGINT)  # again: the deletion is not interrupted
        output, _ = script.communicate(timeout=100)
    assert script.returncode in {130, 129, 137}
    assert "deleting; left: first-contact-" in output
    assert not left(cloud)
    assert not (tmp_path / "first/to-delete.jsonl").exists()


def test_a_creation_that_was_not_answered_is_deleted_when_it_appears(tpu_emulator, tmp_path):
    cloud = tpu_emulator(workers=False)
    with started(cloud, tmp_path / "first", "yes\n") as script:
        wait_until(lambda: created(cloud))
        cloud.rule("late", method="nodes.create", seconds=2, count=1)
        answer(script, "yes\n")
        output, _ = script.communicate(timeout=100)
    assert script.returncode == 1
    assert "it may still take effect" in output
    assert [each.status for each in cloud.requests if each.method == "nodes.delete"].count(200) == 1
    assert not left(cloud)


def test_what_a_killed_recording_has_left_is_deleted_later(tpu_emulator, tmp_path):
    cloud = tpu_emulator(workers=False)
    cloud.delay(node_CREATING=3600)
    with started(cloud, tmp_path / "first", "yes\n" * 4):
        wait_until(lambda: any(each.path.endswith("-n") for each in cloud.requests))
    assert left(cloud)
    again = subprocess.run(command(cloud, tmp_path / "first"), capture_output=True, text=True, timeout=100)
    assert again.returncode == 1, "a second recording would lose the names"
    subprocess.run([SCRIPT, "--delete", tmp_path / "first"], check=True, capture_output=True, timeout=100)
    assert not left(cloud)


def test_no_token_is_sent_to_other_hosts(tmp_path):
    place = ["--zone", "us-central2-b", "--project", "p", "--endpoint", "http://192.0.2.1:80"]
    done = subprocess.run([SCRIPT, tmp_path / "first", *place], capture_output=True, text=True, timeout=100)
    assert done.returncode == 1
    assert "is not an emulator on this machine" in done.stdout


@pytest.mark.system
def test_drift_is_a_list(recorded, tmp_path):
    _, directory, _ = recorded
    drifted = shutil.copytree(directory, tmp_path / "drifted")
    (path,) = drifted.glob("*-get-missing.json")
    exchange = json.loads(path.read_text())
    exchange["answer"]["error"]["status"] = "GONE"
    exchange["answer"]["error"]["details"] = [{"reason": "DELETED"}]
    path.write_text(json.dumps(exchange))
    check = [sys.executable, "scripts/first_contact_check.py", drifted]
    done = subprocess.run(check, cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert done.returncode == 1, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("get-missing: ")]
    assert lines == [
        "get-missing: error.details[].reason is missing in the emulator: DELETED",
        "get-missing: error.status: only the cloud has GONE; only the emulator has NOT_FOUND",
    ]
