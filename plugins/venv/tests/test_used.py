"""Environments in which a program runs, such as that of another job on a shared machine: none is deleted."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import tpux_venv
from tpux import Command
from tpux_venv.build import build

REQUIREMENTS = "--no-index\ntpux-tiny\n"
PROGRAM = 'python -c "import tpux_tiny; print(tpux_tiny.VERSION, flush=True); input()"'


def _end(program: subprocess.Popen[str]) -> None:
    assert program.stdin is not None
    program.stdin.close()
    program.wait()


@pytest.fixture
def start(bench) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Return a function that starts a program in the environment; those that it started are ended with the test."""
    started: list[subprocess.Popen[str]] = []

    def start_one(section, **variables: str) -> subprocess.Popen[str]:
        argv = tpux_venv.run(Command(argv=("sh", "-c", PROGRAM), script=PROGRAM), section).argv
        env, pipe = {**bench.env, **variables}, subprocess.PIPE
        program = subprocess.Popen(argv, cwd=bench.home, env=env, stdin=pipe, stdout=pipe, text=True)
        started.append(program)
        assert program.stdout is not None
        assert program.stdout.readline() == "1.0\n"
        return program

    yield start_one
    for program in started:
        _end(program)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"index_url": "https://a/tpu"}, "with packages from another index"),
        ({"python": "3.99"}, "with another version of Python"),
        ({"marker": "building"}, "from a set-up that was cut off"),
    ],
)
@pytest.mark.parametrize("run", ["", "lab-ann-000012-w0/1/main"])
def test_an_environment_in_which_a_program_runs_is_not_deleted(bench, start, change, why, run):
    (bench.home / "disk").mkdir()
    section = bench.section(path="disk/env")
    bench.setup(section)
    (bench.home / "link").symlink_to("disk")
    program = start(section, **({"TPUX_RUN_ID": run} if run else {}))
    if marker := change.get("marker"):
        (bench.home / "disk/env/.tpux-venv").write_text(marker)
    changed = bench.section(path="link/env", **{key: value for key, value in change.items() if key != "marker"})
    failed = bench.run_steps(build(changed))
    *_, said = failed[1].text.splitlines()
    user = f"a program of a job (TPUX_RUN_ID={run})" if run else "a program"
    assert said.startswith(f"{user} uses the environment {bench.home / 'link/env'} {why} (process ")
    assert said.endswith("wait for it or stop it, or set venv.name")
    assert (bench.home / "disk/env/bin/tpux-tiny").exists()
    _end(program)
    if "python" not in change:
        bench.setup(changed)


def test_programs_in_other_environments_are_none_of_this_one(bench, start):
    first, second = bench.section(), bench.section(name="other")
    for section in (first, second):
        bench.setup(section)
    start(second)
    (bench.home / "env/mine").touch()
    bench.setup(bench.section(index_url="https://a/tpu"))
    assert not (bench.home / "env/mine").exists()


def test_no_copy_replaces_the_packages_of_a_program_that_runs(bench, start, tmp_path):
    bench.requirements.write_text(f"{REQUIREMENTS}# the other job's\n")
    section, bucket = bench.section(), str(tmp_path / "bucket")
    assert bench.run_steps(build(section, directory=bucket)) is None
    assert list(Path(bucket).iterdir())
    (site,) = (bench.home / "env/lib").glob("python*/site-packages")
    (site / "mine.py").touch()
    bench.requirements.write_text(REQUIREMENTS)
    bench.setup(section)
    start(section)
    bench.requirements.write_text(f"{REQUIREMENTS}# the other job's\n")
    assert bench.run_steps(build(section, directory=bucket)) is None
    assert (site / "mine.py").exists()
    assert bench.check(section) == ""
