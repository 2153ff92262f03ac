"""JAX on emulated workers, preempted twice, computes bit for bit what an undisturbed run does. See `make test-jax`."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tpux_emulator.client import find_running
from tpux_emulator.emulator import Emulator

HERE = Path(__file__).parent
TPUX = Path(sys.executable).with_name("tpux")
STEPS = 30
UID = 4242
AS_USER = f'mount --bind "$1" /etc/passwd && shift && exec unshare --user --map-user={UID} --map-group={UID} -- "$@"'

pytestmark = [
    pytest.mark.skipif("JAX_PYTHON" not in os.environ, reason="make test-jax installs JAX and sets JAX_PYTHON"),
    pytest.mark.timeout(1500),
]


@pytest.fixture
def cloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Emulator]:
    """An emulator whose workers see this machine's files, as those of an ordinary user do."""
    for name in [name for name in os.environ if name.startswith(("GOOGLE_", "CLOUDSDK_", "TPUX_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("TPUX_HOME", str(tmp_path / "tpux"))
    monkeypatch.setenv("TPUX_USER", "tester")
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path / "gcloud"))
    passwd = tmp_path / "passwd"
    passwd.write_text(Path("/etc/passwd").read_text() + f"worker:x:{UID}:{UID}::{tmp_path}:/bin/bash\n")
    cloud = Emulator(tmp_path / "emulator")
    command = [sys.executable, "-m", "tpux_emulator", "start", "--port", "0", "--home", str(cloud.home.path)]
    if os.geteuid() == 0:
        command = ["unshare", "--mount", "sh", "-c", AS_USER, "sh", str(passwd), *command]
    with (tmp_path / "emulator.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, "HOME": str(tmp_path)})
    _until(lambda: find_running(cloud.home) or process.poll() is not None)
    facts = find_running(cloud.home)
    assert facts is not None, (tmp_path / "emulator.log").read_text()
    cloud.url, cloud.ssh_port = str(facts["url"]), int(str(facts["ssh_port"]))
    yield cloud
    subprocess.run([TPUX, "supervisor", "stop"], check=False, timeout=100)
    cloud.stop()
    process.wait(100)


def _until(condition: Callable[[], object], seconds: float = 300) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def _arguments(*overrides: str) -> list[str]:
    program = f'STEPS={STEPS} "{os.environ["JAX_PYTHON"]}" "{HERE}/train.py"'
    return [str(TPUX), "run", str(HERE / "jax.yaml"), f"command.cmd='{program}'", *overrides]


def _output(tmp_path: Path, job: int, attempt: int) -> list[str]:
    """Return what each worker printed."""
    logs = tmp_path / f"tpux/jobs/tester/{job:06}/logs/attempt-{attempt}"
    return [(logs / f"command_worker_{worker}.log").read_text() for worker in range(4)]


def _losses(output: str) -> dict[int, str]:
    return {int(step): loss for step, loss in re.findall(r"^step (\d+) loss (\S+)$", output, re.MULTILINE)}


def _finals(output: str) -> list[str]:
    return re.findall(r"^final .*$", output, re.MULTILINE)


def test_a_job_that_is_preempted_twice_computes_the_same(cloud: Emulator, tmp_path: Path) -> None:
    subprocess.run(_arguments("tpu.allocation_mode=local", f"job.output_dir={tmp_path}/whole"), check=True, timeout=600)
    whole = _output(tmp_path, 1, 1)
    losses, finals = _losses(whole[0]), _finals(whole[0])
    assert list(losses) == list(range(STEPS))
    assert len(finals) == 2

    overrides = [f"tpu.endpoint={cloud.url}", f"ssh.port={cloud.ssh_port}", f"job.output_dir={tmp_path}/out"]
    if os.geteuid() == 0:
        overrides.append("job.remote_user=worker")
    run = subprocess.Popen(_arguments(*overrides), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert run.stdout is not None
    attempt, preempted = 0, 0
    for line in run.stdout:
        sys.stdout.write(line)  # shown by pytest if the test fails
        attempt += "running: attempt" in line
        step = re.match(r"\[0\] step (\d+) ", line)
        if step and int(step[1]) >= 7 * attempt and preempted < attempt <= 2:
            [node] = cloud.status()["nodes"]
            cloud.preempt(node["name"], notice=60 if attempt == 1 else 0)
            preempted = attempt
    assert run.wait(100) == 0
    shown = json.loads(subprocess.run([TPUX, "show", "2", "--json"], check=True, capture_output=True).stdout)
    assert (shown["state"], shown["attempt"], shown["preemptions"]) == ("succeeded", 3, 2)

    first, second, third = (_output(tmp_path, 2, number) for number in (1, 2, 3))
    saved = {int(re.findall(r"preempted: saved step (\d+)", output)[0]) for output in first}
    assert len(saved) == 1, "all processes agree on the step"
    starts = [{re.findall(r"starts at step (\d+)", output)[0] for output in part} for part in (second, third)]
    assert starts[0] == {str(max(saved) + 1)}, "nothing is computed again after a preemption with notice"
    assert len(starts[1]) == 1
    seen: set[int] = set()
    for output in [*first, *second, *third]:
        for step, loss in _losses(output).items():
            assert loss == losses[step], step
            seen.add(step)
    assert seen == set(range(STEPS))
    assert [_finals(output) for output in third] == [finals] * 4
