"""Scripts that developers run by hand: the others in `scripts/` are run by `make`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
# There were 89 before 5 for processes that run on after the command, 2 each for the keys of `tpu` that a rule chooses
# and for the clean-up of ended jobs, 1 for symptoms that recur without progress, and 3 since `programs`, which was a
# part of `attempt`, is a file of its own.
MAX_JUMPS = 102
"""Between files of lifecycle, in a traced preemption; may only be lowered."""


def test_the_trace_of_a_preemption_counts_jumps_between_files():
    command = [sys.executable, "scripts/trace_lifecycle.py", "-v"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=250, check=True)
    assert "advance.py:JobController._continue -> run.py:Running.step" in done.stdout
    jumps, _, rest = done.stdout.splitlines()[-2].partition(" jumps, ")
    assert rest
    assert int(jumps) <= MAX_JUMPS
