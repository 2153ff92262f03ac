"""Environments in which a program runs, such as that of another job on a shared machine: none is deleted."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import tpux_venv
from tpux import Command, Result, Sh, env
from tpux_testing import job
from tpux_venv import scripts
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
    assert said.startswith(f"{user}, process ")
    uses = f", uses the environment {bench.home / 'link/env'} {why}: wait for it or stop it, or set venv.name"
    assert said.endswith(uses)
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


def test_an_environment_whose_update_has_failed_is_updated_again_while_a_program_runs(bench, start):
    """It is not deleted, and what is reported is why the update fails."""
    section = bench.section()
    bench.setup(section)
    program = start(section)
    bench.requirements.write_text("--no-index\nnmupy\n")
    for _ in range(2):
        step, result = bench.run_steps(build(section))
        assert step.script.startswith("# install the requirements with pip")
        assert "No matching distribution found for nmupy" in result.text
        assert bench.check(section) == f"no complete environment in {bench.home / 'env'}"
    bench.requirements.write_text(f"{REQUIREMENTS}# corrected\n")
    (bench.home / "env/mine").touch()
    bench.setup(section)
    assert (bench.home / "env/mine").exists()
    bench.requirements.write_text("--no-index\nnmupy\n")
    assert bench.run_steps(build(section))
    _end(program)
    bench.requirements.write_text(REQUIREMENTS)
    bench.setup(section)
    assert not (bench.home / "env/mine").exists()


@pytest.mark.parametrize("found_ready", [False, True])
def test_an_environment_is_used_from_its_set_up_on(bench, found_ready):
    """The program of a job starts when all of its workers are ready."""
    ann, section = job(), bench.section(path="shared/env")
    assert bench.run_steps(build(section, key=ann.key, job=f"job 1 of {ann.user}")) is None
    if found_ready:
        assert bench.run_steps(tpux_venv.clean_up(ann, section)) is None
        assert bench.run_steps(tpux_venv.check(ann, section)) is None
    (bench.home / "link").symlink_to("shared")
    other = bench.section(name="other", path="~/shared//env", index_url="https://a/tpu")
    _, result = bench.run_steps(build(other, key="bob-2", job="job 2 of bob"))
    expected = f"job 1 of {ann.user} uses the environment {bench.home}/shared//env with packages from another index"
    assert result.text == f"{expected}: wait for it or stop it, or set venv.name"
    assert bench.check(section) == ""
    assert bench.run_steps(tpux_venv.clean_up(ann, section)) is None
    assert bench.run_steps(build(other, key="bob-2", job="job 2 of bob")) is None


def test_an_environment_that_was_found_wanting_is_not_used(bench):
    ann, section = job(), bench.section()
    bench.setup(section)
    assert bench.run_steps(tpux_venv.check(ann, bench.section(python="3.99")))
    (bench.home / "env/.tpux-venv").write_text("building")
    assert bench.run_steps(tpux_venv.check(job(), section))
    assert list((bench.home / ".tpux/uses").glob("*/*")) == []


def test_other_environments_of_the_same_name_are_not_used(bench):
    ann, bob = job(), job()
    first, second = (bench.section(path=f"{name}/env") for name in ("ann", "bob"))
    for one, section in ((ann, first), (bob, second)):
        assert bench.run_steps(build(section, key=one.key, job="a job")) is None
    assert bench.run_steps(tpux_venv.clean_up(bob, second)) is None
    changed = bench.section(path="bob/env", index_url="https://a/tpu")
    assert bench.run_steps(build(changed, key="bob-2", job="job 2 of bob")) is None


def test_a_job_uses_one_environment(bench):
    """It may have been changed to another one."""
    ann, first, second = job(), bench.section(), bench.section(name="second")
    for section in (first, second):
        assert bench.run_steps(build(section, key=ann.key, job="job 1 of ann")) is None
    changed = bench.section(index_url="https://a/tpu")
    assert bench.run_steps(build(changed, key="bob-2", job="job 2 of bob")) is None


@pytest.mark.parametrize("other", [{"name": "env"}, {"path": "~/env"}, {"path": "{home}/env"}, {"path": "link/env"}])
def test_one_directory_is_set_up_by_one_job_at_a_time_however_it_is_written(bench, monkeypatch, other):
    monkeypatch.setattr(scripts, "SETUP_LOCK_TIMEOUT", 1)
    (bench.home / "link").symlink_to(bench.home)
    assert bench.run_steps(build(bench.section(path="x/../env"), key="ann-1", job="job 1 of ann"), 3) is None
    section = bench.section(**{key: value.format(home=bench.home) for key, value in other.items()})
    _, result = bench.run_steps(build(section, key="bob-2", job="job 2 of bob"))
    assert "job 1 of ann has not set up" in result.text


def test_a_link_that_becomes_a_directory_is_set_up_under_one_lock(bench):
    (bench.home / "disk").mkdir()
    (bench.home / "env").symlink_to("disk")
    assert bench.run_steps(build(bench.section(), key="ann-1", job="job 1 of ann")) is None
    assert not (bench.home / "env").is_symlink()
    assert {path.read_text() for path in (bench.home / ".tpux/venv").glob("*.lock")} == {""}


def test_a_job_that_has_set_up_an_environment_is_not_disturbed_by_the_next_one(bench):
    ann, bob, section = job(), replace(job(), id="000002"), bench.section()
    assert bench.run_steps(build(section, key=ann.key, job="job 1 of ann")) is None
    assert bench.run_steps(build(section, key=bob.key, job="job 2 of bob"), 2) is None
    assert (bench.home / "env/.tpux-venv").read_text() == "updating\n"
    assert bench.run_steps(tpux_venv.check(ann, section)) is None
    assert bench.check(section) != "", "a third job waits for its end"
    assert bench.run_steps(tpux_venv.clean_up(bob, section)) is None
    assert bench.run_steps(tpux_venv.check(ann, section)), "nobody is going to end the update"


def test_a_command_that_only_checks_uses_nothing(bench):
    ann, section = job(), bench.section()
    bench.setup(section)
    (step,) = tpux_venv.check(ann, section)
    assert bench.run_step(replace(step, script=f"{env.CHECK_ONLY}=1\n{step.script}")).ok
    assert not (bench.home / ".tpux/uses" / ann.key).exists()


def test_a_first_set_up_on_a_full_disk_is_begun_again(bench):
    bench.program("find", "echo the disk is full; exit 1")
    assert bench.run_steps(build(bench.section()))
    assert [path.name for path in (bench.home / "env").iterdir()] == [".tpux-venv"]
    (bench.bin / "find").unlink()
    bench.setup(bench.section())


def test_a_disk_that_is_full_for_a_moment_does_not_make_an_environment_incomplete(bench, start):
    section = bench.section()
    bench.setup(section)
    program = start(section)
    bench.program("mv", 'case $* in *.tpux-venv.new*) exit 1 ;; esac; exec /bin/mv "$@"')
    assert bench.run_steps(build(section))
    (bench.bin / "mv").unlink()
    assert (bench.home / "env/.tpux-venv").read_text() == "ready\n"
    bench.setup(section)
    _end(program)


def test_another_jobs_packages_are_not_kept_in_the_bucket(bench, tmp_path):
    section, bucket = bench.section(), tmp_path / "bucket"
    steps = build(section, directory=str(bucket))
    result = Result()
    step = next(steps)
    while not (isinstance(step, Sh) and step.script.startswith("# keep the environment in the bucket")):
        result = bench.run_step(step)
        step = steps.send(result)
    bench.requirements.write_text(f"{REQUIREMENTS}# the other job's\n")
    bench.setup(section)
    result = bench.run_step(step)
    assert (result.code, result.text) == (2, "another job has changed the environment meanwhile")
    assert list(bucket.iterdir()) == []


def test_an_archive_that_is_not_complete_is_not_kept_in_the_bucket(bench, tmp_path):
    bench.program("tar", 'case $* in *" ."*) exit 2 ;; esac; exec /usr/bin/tar "$@"')
    bucket = tmp_path / "bucket"
    assert bench.run_steps(build(bench.section(), directory=str(bucket))) is None
    assert list(bucket.iterdir()) == []
