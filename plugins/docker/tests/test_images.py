"""Images in which no command can be started: found when the workers are set up, or at the latest before success."""

from __future__ import annotations

import json
import subprocess

import pytest
from docker_support import PROGRAMS, image_layer

from tpux_testing.sandbox import Sandbox, SandboxJob

OTHER_MACHINE = "\x7fELF\x02\x01\x01" + "\0" * 80


@pytest.fixture
def sandbox():
    with Sandbox() as sandbox:
        yield sandbox


@pytest.fixture
def new_image(daemon, image, tmp_path):
    """Return a function that creates an image without a registry, and returns its name."""
    made = []

    def create(*changes: str, programs=PROGRAMS, scripts=None) -> str:
        name = f"made:{len(made)}"
        made.append(name)
        options = [option for change in ("ENV PATH=/usr/bin", *changes) for option in ("-c", change)]
        layer = image_layer(programs, scripts)
        subprocess.run([*daemon.client, "import", *options, "-", name], input=layer, check=True, capture_output=True)
        return name

    yield create
    daemon("rmi", "--force", *made)


def entry_point(script: str) -> str:
    return f"ENTRYPOINT {json.dumps(['bash', '-c', script, 'entry'])}"


def start(sandbox: Sandbox, image: str, cmd: str, **keys: object) -> SandboxJob:
    docker = {"image": image, "flags": ["--security-opt seccomp=unconfined"], **keys}
    config = {"job": {"env_type": "docker", "rule": "pass"}, "docker": docker, "command": {"cmd": cmd}}
    job = sandbox.start(config)
    job.until(lambda state: state.ended)
    return job


@pytest.mark.parametrize(
    ("changes", "programs", "scripts", "expected"),
    [
        ([entry_point("echo tensorflow 2.14; exit 0")], PROGRAMS, None, '["--entrypoint="]'),
        ([entry_point("echo no such option; exit 2")], PROGRAMS, None, '["--entrypoint="]'),
        ([], [name for name in PROGRAMS if name != "bash"], None, "has no bash"),
        ([], [name for name in PROGRAMS if name != "bash"], {"bash": OTHER_MACHINE}, "another kind of machine"),
        (["USER 1000"], PROGRAMS, None, '["--user=root"]'),
    ],
)
def test_an_image_that_starts_no_command_fails_the_setup_at_once(
    daemon, sandbox, new_image, changes, programs, scripts, expected
):
    job = start(sandbox, new_image(*changes, programs=programs, scripts=scripts), "echo TRAINED")
    failure = job.state.failure
    assert (job.state.state, failure.kind) == ("failed", "setup")
    assert expected in failure.evidence
    assert job.state.attempt == 0
    log = (job.controller.record.directory / "logs/docker_worker_0.log").read_text()
    assert log.count("$ # try to start a command in the image") == 1, "the answer cannot change"
    assert daemon.containers() == []


def test_an_entry_point_that_starts_the_command_may_do_so_later(daemon, sandbox, new_image):
    image = new_image(entry_point('echo prepared; sleep 1; exec "$@"'))
    job = start(sandbox, image, "echo TRAINED")
    assert job.state.state == "succeeded"
    assert job.output() == "prepared\nTRAINED\n"


def test_a_command_that_was_never_started_has_not_succeeded(daemon, sandbox, new_image, tmp_path):
    (tmp_path / "data").mkdir()
    image = new_image(entry_point('[ ! -e /data/ignore ] || exit 0; exec "$@"'))
    job = start(sandbox, image, "echo TRAINED; exit 3", mount_dirs=[f"{tmp_path}/data:/data"])
    assert (job.state.failure.kind, job.state.failure.code) == ("program", 3)
    (tmp_path / "data/ignore").touch()
    job.request("resume")
    job.until(lambda state: state.ended and state.attempt == 2)
    assert (job.state.state, job.state.failure.kind) == ("failed", "setup")
    assert "ENTRYPOINT" in job.state.failure.evidence
    assert '["--entrypoint="]' in job.state.failure.hint
    assert "TRAINED" not in job.output()
    assert daemon.containers() == []
