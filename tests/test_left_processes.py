"""A command that exits with 0 while what it has started runs on, as the first command of people who used ssh does."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

CONFIG = """
command:
  cmd: |
    {cmd}
watch: {{straggler_grace: 1s}}
"""


def left(tpux, command, *overrides):
    """Create a job with this command; what a name of tmux's socket stands for is the test's own."""
    return tpux.create(CONFIG.format(cmd=command), *overrides)


@pytest.mark.system
@pytest.mark.parametrize("detached", ["nohup sleep 1000 &", "setsid -f sleep 1000", "tmux -L LEFT new -d 'sleep 1000'"])
def test_a_program_in_the_background_is_held_and_the_attempt_is_incomplete(tpux, detached):
    job = left(tpux, detached.replace("LEFT", tpux.work.parent.name))
    tpux.until(lambda: "the machines are held until that ends" in str(tpux.show(job)["why"]))
    assert "sleep 1000" in tpux("list").stdout
    tpux("supervisor", "stop")
    tpux("supervisor", "start")
    tpux.until(lambda: tpux.supervisor() is not None)
    end_marked(tpux, "sleep\x001000")
    tpux("wait", job, code=100)
    failure = tpux.show(job)["failure"]
    assert failure["kind"] == "incomplete"
    assert "exit code 0 on all workers, but left " in failure["evidence"]
    assert "in the foreground" in failure["hint"]


def end_marked(tpux, command):
    """End the processes of this command line that belong to the test's own store."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            environment = (entry / "environ").read_bytes()
            if command.encode() in (entry / "cmdline").read_bytes() and str(tpux.home).encode() in environment:
                os.kill(int(entry.name), signal.SIGTERM)
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue


def test_what_ends_within_the_grace_period_is_no_failure(tpux):
    job = left(tpux, "sleep 2 &", "watch.straggler_grace=30s")
    tpux("wait", job)
    assert tpux.show(job)["state"] == "succeeded"


def test_helpers_and_what_the_config_allows_are_ended(tpux):
    script = "#!/bin/sh\nexec sleep 1000 >/dev/null 2>&1\n"
    for name in ("wandb-core", "mine"):
        (tpux.work / name).write_text(script.replace("exec ", ""))
        (tpux.work / name).chmod(0o755)
    job = left(tpux, f"{tpux.work}/wandb-core & {tpux.work}/mine &", "command.allow_left=[mine, sleep]")
    tpux("wait", job)
    assert "left 4 processes" in tpux("logs", job, "--module", "tpu").stdout


def test_after_the_timeout_it_is_ended(tpux):
    job = left(tpux, "sleep 1000 &", "command.left_timeout=2s")
    tpux("wait", job, code=100)
    assert tpux.show(job)["failure"]["kind"] == "incomplete"


def test_a_stop_ends_what_is_held(tpux):
    job = left(tpux, "sleep 1000 &")
    tpux.until(lambda: "the machines are held until that ends" in str(tpux.show(job)["why"]))
    tpux("stop", job)
    assert tpux.show(job)["state"] == "stopped"


def test_a_detector_that_reports_the_end_outranks_what_is_left(tpux):
    job = left(tpux, "echo all done; sleep 1000 &", "command.finished_by=[log]", "log.finished=all done")
    tpux("wait", job)
    assert tpux.show(job)["state"] == "succeeded"


@pytest.mark.parametrize(
    "script",
    [
        "nohup python train.py > log 2>&1 &",
        "cd src\npython train.py & # go",
        "tmux new -d 'python train.py'",
        "tmux -L x new-session -s train -d 'python train.py'",
        "screen -dmS train python train.py",
        "setsid -f python train.py",
        "python train.py &\ndisown",
    ],
)
def test_a_config_whose_last_command_detaches_is_warned_of(tpux, script):
    config = tpux.config("command:\n  cmd: |\n" + "".join(f"    {line}\n" for line in script.split("\n")))
    told = tpux("config", "check", config).stderr
    assert "job.yaml:2:8: the last command of command.cmd puts the program into the background: " in told


@pytest.mark.parametrize("script", ["a & b", "a &\nwait", "a && b", "a >&2", "echo 'x &'", "tmux ls", "setsid a"])
def test_one_that_waits_is_not(tpux, script):
    config = tpux.config("command:\n  cmd: |\n" + "".join(f"    {line}\n" for line in script.split("\n")))
    assert "background" not in tpux("config", "check", config).stderr
