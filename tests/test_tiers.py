"""The tests of `make test` and of `make test-all`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutants.table import MUTANTS

ROOT = Path(__file__).parent.parent


def test_each_mutant_is_caught_by_a_test_that_make_test_runs():
    named = sorted({test for mutant in MUTANTS for test in mutant.tests})
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:xdist", "-m", "system", *named]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == pytest.ExitCode.NO_TESTS_COLLECTED, f"they have the mark `system`:\n{done.stdout}"
