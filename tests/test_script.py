"""The module `script` in whole jobs, and the examples in examples/setup."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
CONFIG = """
script: {path: setup.sh, args: [one]}
tpu: {accelerator: v4-16}
command: {cmd: 'cat ~/ran; exit 3', grace_period: 1s}
job: {rule: pass}
"""


def runs(tpux, job: str, attempt: int) -> list[str]:
    return [tpux.output(job, worker, attempt).decode() for worker in (0, 1)]


def test_it_runs_once_per_change(tpux):
    (tpux.work / "setup.sh").write_text('echo "$1 $TPUX_WORKER" >>ran\n')
    job = tpux.create(CONFIG)
    tpux("wait", job, code=100)
    assert runs(tpux, job, 1) == ["one 0\n", "one 1\n"]
    (tpux.work / "setup.sh").write_text("exit 9\n")  # the job has a copy
    tpux("resume", job)
    tpux("wait", job, code=100)
    assert runs(tpux, job, 2) == ["one 0\n", "one 1\n"]
    tpux("resume", job, "script.args=[two]")
    tpux("wait", job, code=100)
    assert runs(tpux, job, 3) == ["one 0\ntwo 0\n", "one 1\ntwo 1\n"]


def test_a_failure_names_module_worker_and_last_lines(tpux):
    (tpux.work / "setup.sh").write_text('[ "$TPUX_WORKER" = 0 ] || { echo trying; echo no such disk; exit 4; }\n')
    job = tpux.create(CONFIG, "setup.tries=1")
    tpux("wait", job, code=100)
    failure = tpux.show(job)["failure"]
    assert (failure["kind"], failure["worker"]) == ("setup", 1)
    assert failure["evidence"] == "script: `run the set-up script` exited with 4: trying | no such disk"
    assert f"tpux logs {int(job)} --module script --worker 1" in failure["hint"]
    assert "trying\nno such disk\nexit 4\n" in tpux("logs", job, "--module", "script", "--worker", "1").stdout


@pytest.mark.parametrize(
    ("content", "message"),
    [("", "the script is empty"), ("true\r\nfalse\r\n", "Windows line ends"), (None, "file not found")],
)
def test_mistakes(tpux, content, message):
    if content is not None:
        (tpux.work / "setup.sh").write_bytes(content.encode())
    assert message in tpux("create", tpux.config(CONFIG), code=None).stderr


def test_the_example_logs_in_to_wandb_without_showing_the_key(tpux):
    shutil.copytree(EXAMPLES, tpux.work / "examples")
    tpux.env["WANDB_API_KEY"] = "s3cret" * 7
    done = tpux("run", "examples/script.yaml")
    assert "[1] machine api.wandb.ai" in done.stdout
    netrc = tpux.machines("000001") / "worker-1/.netrc"
    assert (netrc.read_text().splitlines()[-1], netrc.stat().st_mode & 0o777) == (f"  password {'s3cret' * 7}", 0o600)
    tpux.until(lambda: not list(tpux.directory("000001").rglob("secrets.json")))
    for worker in (0, 1):
        (tpux.machines("000001") / f"worker-{worker}/.netrc").unlink()
    for path in tpux.home.rglob("*"):
        assert not path.is_file() or b"s3cret" not in path.read_bytes(), path


@pytest.mark.parametrize("script", sorted((EXAMPLES / "setup").glob("*.sh")), ids=lambda path: path.name)
def test_the_examples_are_valid_shell_scripts(script):
    subprocess.run(["bash", "-n", script], check=True)
    assert script.stat().st_mode & 0o111


@pytest.mark.skipif(os.getuid() != 0, reason="only root may mount a small file system")
def test_a_full_disk_on_one_of_four_workers(tpux):
    (tpux.work / "setup.sh").write_text(
        "mkdir -p data; : >waiting; touch ran\n"
        "set -e\nuntil [ -e ~/go ]; do sleep 0.1; done\n"
        "head -c 3000000 /dev/zero >data/file\n"
        "echo end\n"
    )
    job = tpux.create(CONFIG, "setup.tries=1", "tpu.accelerator=v4-32")
    tpux.until(lambda: len(list(tpux.directory(job).glob("machines/*/worker-*/waiting"))) == 4)
    homes = [tpux.machines(job) / f"worker-{worker}" for worker in range(4)]
    small = homes[2] / "data"
    containers = [tpux.work / f"container-{number:04}" / "merged" for number in range(24)]
    for place in containers:
        place.mkdir(parents=True)
    mounts: list[Path] = []
    try:
        for place in (*containers, small):
            mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tpux-test", place], capture_output=True)
            if mounted.returncode:
                pytest.skip(f"cannot mount here: {mounted.stderr.decode()}")
            mounts.append(place)
        for worker in (0, 1, 3):
            (homes[worker] / "go").touch()
        logs = tpux.directory(job) / "logs"
        tpux.until(lambda: all("\nend\n" in (logs / f"script_worker_{n}.log").read_text() for n in (0, 1, 3)))
        (homes[2] / "go").touch()
        tpux("wait", job, code=100)
    finally:
        for place in mounts:
            subprocess.run(["umount", "-l", place], check=True)
    failure = tpux.show(job)["failure"]
    assert (failure["kind"], failure["worker"]) == ("setup", 2)
    start = f"script: the disk of worker 2 is full ({small}: 0 of 1.0 MB): `run the set-up script` exited with 1: "
    assert failure["evidence"].startswith(start)
    assert "No space left on device" in failure["evidence"]
    assert f"tpux logs {int(job)} --module script --worker 2" in failure["hint"]
    tpux("resume", job)
    tpux("wait", job, code=100)
    assert tpux.show(job)["failure"]["kind"] == "program", "with more space on the disk, the set-up succeeds"
