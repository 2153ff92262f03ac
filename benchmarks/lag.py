"""Delay between a program writing a line and `tpux run` printing it."""

from __future__ import annotations

import subprocess
import time
from statistics import median

from benchmarks.measure import Row, at_most
from benchmarks.sandbox import TPUX, temporary_sandbox

LINES = 12
PAUSE = 1.7
"""Seconds between two lines: long enough for the poll interval to have grown."""


def rows() -> list[Row]:
    """Measure the delay of each line; a line contains the time at which it was written."""
    script = f"for i in $(seq {LINES}); do sleep {PAUSE}; date +%s.%N; done"
    with temporary_sandbox() as sandbox:
        config = sandbox.config(f"command: {{cmd: '{script}'}}\n")
        process = subprocess.Popen(
            [TPUX, "run", config], env=sandbox.env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        assert process.stdout is not None
        lags = [time.time() - float(line.split()[1]) for line in process.stdout]
        process.wait()
    if len(lags) != LINES:
        raise RuntimeError(f"{len(lags)} of {LINES} lines were printed")
    note = f"maximum of {LINES} lines; median {median(lags):.2g} s"
    return [at_most("delay of a program's line on the screen of `tpux run`", max(lags), 2, unit=" s", note=note)]
