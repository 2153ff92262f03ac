"""How long a line that a program writes needs to the screen of `tpux run`."""

from __future__ import annotations

import subprocess
import time
from statistics import median

from benchmarks.measure import Row, at_most
from benchmarks.world import TPUX, world

LINES = 12
PAUSE = 1.7
"""Seconds between two lines: long enough for the pauses between two looks to have grown."""


def rows() -> list[Row]:
    """From the line's writing, which it tells itself, to its arrival."""
    script = f"for i in $(seq {LINES}); do sleep {PAUSE}; date +%s.%N; done"
    with world() as one:
        config = one.config(f"command: {{cmd: '{script}'}}\n")
        process = subprocess.Popen(
            [TPUX, "run", config], env=one.env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        assert process.stdout is not None
        lags = [time.time() - float(line.split()[1]) for line in process.stdout]
        process.wait()
    if len(lags) != LINES:
        raise RuntimeError(f"{len(lags)} of {LINES} lines came")
    note = f"the latest of {LINES} lines; median {median(lags):.2g} s"
    return [at_most("a program's line is on the screen of `tpux run`", max(lags), 2, unit=" s", note=note)]
