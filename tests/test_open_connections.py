"""Commands use the connections that the supervisor of a live job holds."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import time
from pathlib import Path

import pytest

from tpux import framing

CONFIG = "tpu: {accelerator: v4-16}\ncommand: {cmd: 'echo ready; exec sleep 1000', grace_period: 1s}\n"


@pytest.fixture
def job(tpux):
    job = tpux.create(CONFIG)
    tpux.until(lambda: all(tpux.output_so_far(job, worker) == b"ready\n" for worker in (0, 1)))
    return job


def socket_of(tpux) -> Path:
    return next(tpux.home.glob("supervisor/*")) / "calls/socket"


def parents(tpux, job: str) -> str:
    """Return the process id of the process that runs a command on worker 0."""
    return tpux("exec", job, "--host", "--worker", "0", "echo $PPID").stdout.split()[1]


def test_a_command_runs_over_the_supervisors_connection(tpux, job):
    script = "ps -o ppid= -p $(ps -o ppid= -p $PPID)"
    print(tpux("exec", job, "--host", "--worker", "0", "ps -ef --forest | tail -40; echo $$ $PPID").stdout)
    print(tpux.supervisor(), tpux("exec", job, "--host", "--worker", "0", script).stdout)
    print(tpux.log())
    assert 0
