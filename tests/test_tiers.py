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


STARTS = """
import pytest

def test_unit(tmp_path):
    (tmp_path / "home/supervisor/ann").mkdir(parents=True)
    (tmp_path / "home/supervisor/ann/log").touch()

@pytest.mark.process
def test_process(tmp_path):
    test_unit(tmp_path)

@pytest.mark.system
def test_system(tmp_path):
    test_unit(tmp_path)
"""


def test_a_test_without_a_mark_must_not_start_a_supervisor(tmp_path):
    (tmp_path / "test_one.py").write_text(STARTS)
    options = [
        "-c",
        ROOT / "pyproject.toml",
        "-p",
        "conftest",
        "-p",
        "no:xdist",
        "-p",
        "no:warnings",
        "-p",
        "no:cacheprovider",
        f"--rootdir={tmp_path}",
    ]
    command = [sys.executable, "-m", "pytest", *options, tmp_path / "test_one.py"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert "3 passed, 1 error" in done.stdout, done.stdout  # the error is one of its teardown
    assert "ERROR at teardown of test_unit" in done.stdout
    assert "a supervisor was started: give the test the mark `process` or `system`" in done.stdout


def test_a_fixture_that_starts_processes_marks_its_tests(request, tpux):
    assert request.node.get_closest_marker("process")
    assert not list(tpux.home.glob("supervisor"))


def test_a_test_without_such_a_fixture_has_no_mark(request, runner):
    assert not request.node.get_closest_marker("process")
    assert runner("list").returncode == 0
