"""The module `script` in whole jobs, and the examples in examples/setup."""

from __future__ import annotations

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
