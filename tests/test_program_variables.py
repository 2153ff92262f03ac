"""The environment variables of a program: `command.env`, ranks, the coordinator's port, unbuffered output."""

from __future__ import annotations

import pytest


def variables(tpux, text, *names, worker=0):
    echo = "; ".join(f'echo "{name}=${name}"' for name in names)
    tpux("run", tpux.config(f"command:\n  cmd: '{echo}'\n{text}"))
    job = tpux.json("list", "--all")[-1]["id"]
    return dict(line.split("=", 1) for line in tpux.output(job, worker).decode().splitlines())


def test_command_env(tpux):
    tpux.env["WANDB_KEY"] = "se$cret '\" ${HOME}"
    text = """
  env:
    PLAIN: 'a b $HOME ${HOME} $$ \\\\ "q"'
    NUMBER: 7
    KEY: key=${env:WANDB_KEY}
    DIR: ${job.output_dir}/x
"""
    found = variables(tpux, text, "PLAIN", "NUMBER", "KEY", "DIR", "TPUX_OUTPUT_DIR")
    assert found["PLAIN"] == 'a b $HOME ${HOME} $$ \\\\ "q"'
    assert found["NUMBER"] == "7"
    assert found["KEY"] == "key=se$cret '\" ${HOME}"
    assert found["DIR"] == f"{found['TPUX_OUTPUT_DIR']}/x"


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ("{TPUX_JOB_ID: '1'}", "TPUX_JOB_ID: variables that begin with TPUX_ are set by tpux"),
        ("{A-B: '1'}", "'A-B' is not the name of a variable"),
        ("{FLAG: true}", "command.env.FLAG must be a string; true without quotes is true or false"),
    ],
)
def test_command_env_that_is_not_valid(tpux, env, message):
    done = tpux("create", tpux.config(f"command: {{cmd: 'true', env: {env}}}\n"), code=2)
    assert message in done.stderr
    assert "job.yaml:1:" in done.stderr


def test_output_of_python_is_not_buffered(tpux):
    job = tpux.create("command: {cmd: 'python3 -c \"import time; print(1); time.sleep(1000)\"', grace_period: 0}\n")
    tpux.until(lambda: tpux.output_so_far(job) == b"1\n")
    tpux("stop", job)
    assert variables(tpux, "  env: {PYTHONUNBUFFERED: ''}\n", "PYTHONUNBUFFERED") == {"PYTHONUNBUFFERED": ""}


def test_ranks_of_some_workers(tpux):
    text = "  workers: [1, 3]\ntpu: {accelerator: v4-32}\n"
    names = ("TPUX_WORKER", "TPUX_RANK", "TPUX_NUM_WORKERS")
    assert list(variables(tpux, text, *names, worker=1).values()) == ["1", "0", "2"]
    assert tpux.output("000001", 3).decode().split() == ["TPUX_WORKER=3", "TPUX_RANK=1", "TPUX_NUM_WORKERS=2"]


def test_local_jobs_have_different_coordinator_ports(tpux):
    listens = """
import os, socket, sys, time
host, port = os.environ["TPUX_COORDINATOR_ADDRESS"].split(":")
if os.environ["TPUX_RANK"] == "0":
    server = socket.create_server((host, int(port)))
print("up " + port)
time.sleep(1000)
"""
    (tpux.work / "listen.py").write_text(listens)
    text = f"tpu: {{accelerator: v4-16}}\ncommand: {{cmd: 'python3 {tpux.work}/listen.py', grace_period: 0}}\n"
    jobs = [tpux.create(text), tpux.create(text)]
    tpux.until(lambda: all(tpux.output_so_far(job, w).startswith(b"up") for job in jobs for w in (0, 1)))
    assert tpux.output(jobs[0]) == tpux.output(jobs[0], 1)
    assert tpux.output(jobs[0]) != tpux.output(jobs[1])
    tpux("stop", *jobs)
