"""examples/failures: each program ends with the right kind, line and action."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples/failures"
EXPECTED = {
    "out-of-memory": ("out-of-memory", "-", "failed", "RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm"),
    "lost-peer": ("infra", "resume", "succeeded", "UNAVAILABLE: Socket closed"),
    "tpu-busy": ("tpu-busy", "solve", "succeeded", "The TPU is already in use by process with pid 4242."),
    "nan": ("program", "-", "failed", "exit code 1: FloatingPointError: loss is NaN at step 1200"),
    "hang": ("stalled", "resume", "succeeded", "no worker wrote anything for "),
    "finished-then-crash": ("-", "-", "succeeded", ""),
    "typo": ("program", "-", "failed", "exit code 1: NameError: name 'learnin_rate' is not defined"),
}


@pytest.mark.system
@pytest.mark.timeout(600)
def test_the_script_runs_seven_programs(tpux, tmp_path):
    pytest.importorskip("wandb", reason="wandb is not installed: it has no wheel for this platform")
    shutil.copytree(EXAMPLES, tmp_path / "failures")
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    (bin_ / "tpux").write_text(f'#!/bin/sh\nexec {sys.executable} -m tpux "$@"\n')
    (bin_ / "python3").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    for program in bin_.iterdir():
        program.chmod(0o755)
    env = {**tpux.env, "TPUX_CLOCK_RATE": "2", "PATH": f"{bin_}{os.pathsep}{os.environ['PATH']}"}
    script = ["sh", tmp_path / "failures/run.sh"]
    done = subprocess.run(script, env=env, capture_output=True, text=True, timeout=500)
    lines = [line.split(maxsplit=4) for line in done.stdout.splitlines()]
    found = {line[0]: (*line[1:4], line[4] if len(line) > 4 else "") for line in lines}
    assert found.keys() == EXPECTED.keys(), done.stdout + done.stderr
    for name, (kind, action, state, evidence) in EXPECTED.items():
        assert found[name][:3] == (kind, action, state), done.stdout
        assert evidence in found[name][3], done.stdout
