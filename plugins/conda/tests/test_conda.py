"""Environments from their creation to their update, on workers with a command like conda over a real solver."""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace

import pytest

import tpux_conda
from tpux import Command, Host, Job, Peer, Result, Worker
from tpux_conda import scripts
from tpux_conda.build import build
from tpux_conda.section import CondaSection
from tpux_testing import job

JOB = job()


def run(host, section: CondaSection, script: str) -> Result:
    """Run a command wrapped by the plugin."""
    host.put(script.encode(), "script")
    wrapped = tpux_conda.run(Command(("bash", "script"), "script"), section)
    return host.run(shlex.join(wrapped.argv))


def test_an_environment_is_created_and_follows_its_file(workers):
    host, section = workers.host(), workers.write("tiny=1.0", "extra", "python=3.10")
    section = section.model_copy(update={"python": "3.10", "requirements": ["numpy>=2", "# 'last'"]})
    assert "no complete environment" in check(workers, host, section).text
    assert workers.take(host, build(section)).ok
    assert check(workers, host, section).ok
    shown = run(host, section, 'tiny; extra; echo "$CONDA_DEFAULT_ENV"; cat "$CONDA_PREFIX/pip-calls"; exit 7')
    assert shown.code == 7
    assert shown.text.splitlines()[:3] == ["tiny 1.0", "extra 1.0", "train"]
    assert shown.text.endswith("numpy>=2\n# 'last'")

    section = workers.write("tiny=2.0", "python=3.10")
    assert workers.take(host, build(section)).ok
    assert run(host, section, "tiny; extra").text == "tiny 2.0\nextra 1.0"
    pruned = section.model_copy(update={"prune": True})
    assert workers.take(host, build(pruned)).ok
    assert run(host, section, "command -v extra").code == 1
    wrong = check(workers, host, section.model_copy(update={"python": "3.12"}))
    assert wrong.text.endswith("has Python 3.10.4, not Python 3.12")


@pytest.mark.parametrize("place", ["requirements", "config_file"])
def test_an_environment_whose_packages_come_from_another_index_is_created_again(workers, place):
    """pip takes a requirement as satisfied by what another index has sent."""
    host = workers.host()

    def section(url: str) -> CondaSection:
        written, option = workers.write("tiny=1.0", "python=3.10"), f"--index-url {url}"
        if place == "config_file":  # pip's options there are items of a list, which the stand-in does not know
            workers.file.write_text(f"{workers.file.read_text()}x-pip:\n    - {option}\n")
            option = "# no option"
        return written.model_copy(update={"requirements": [option, "numpy>=2"]})

    assert workers.take(host, build(section("https://a/cpu"))).ok
    assert host.run("touch envs/train/mine").ok
    assert workers.take(host, build(section("https://ann:new@a/cpu"))).ok
    assert host.run("test -e envs/train/mine").ok
    assert workers.take(host, build(section("https://a/tpu"))).ok
    assert not host.run("test -e envs/train/mine").ok
    assert "tiny 1.0" in run(host, section("https://a/tpu"), "tiny").text


def check(workers, host: Host, section: CondaSection) -> Result:
    result = workers.take(host, tpux_conda.check(JOB, section))
    host.run(f"rm -rf .tpux/uses/{JOB.key}")  # not in the way of other set-ups
    return result


@pytest.fixture
def start(workers) -> Iterator[Callable[[Host, CondaSection], int]]:
    """Return a function that starts a program in the environment; those that it started are ended with the test."""
    started: list[int] = []

    def start_one(host: Host, section: CondaSection) -> int:
        wrapped = tpux_conda.run(Command(("sh", "-c", "touch started; exec sleep 1000"), ""), section)
        script = f"TPUX_RUN_ID=lab-ann-12-w0/1/main {shlex.join(wrapped.argv)} >/dev/null 2>&1 & echo $!"
        started.append(int(host.run(f"{script}; until [ -e started ]; do sleep 0.1; done").text))
        return started[-1]

    yield start_one
    for pid in started:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"requirements": ["-i https://a/tpu"]}, "with packages from another index"),
        ({"python": "3.12"}, "with another version of Python"),
        ({}, "from a set-up that was cut off"),
    ],
)
def test_an_environment_in_which_a_program_runs_is_not_deleted(workers, start, change, why):
    host = workers.host()
    section = CondaSection.model_validate({"name": "train", "python": "3.10"})
    assert workers.take(host, build(section)).ok
    pid = start(host, section)
    if not change:
        assert host.run("touch .tpux/conda/train.building").ok
    changed = section.model_copy(update=change)
    failed = workers.take(host, build(changed))
    assert failed.code == 1
    user = f"a program of a job (TPUX_RUN_ID=lab-ann-12-w0/1/main), process {pid},"
    expected = f"{user} uses the environment train {why}: wait for it or stop it, or set conda.name"
    assert failed.text.splitlines()[-1] == expected
    assert host.run("envs/train/bin/python --version").text == "Python 3.10.4"
    if change:
        assert check(workers, host, section).ok, "it is complete for the job that uses it"
    os.kill(pid, signal.SIGKILL)
    assert workers.take(host, build(changed)).ok


def test_an_older_micromamba_does_not_delete_an_environment_in_which_a_program_runs(workers, start):
    """It cannot update one from a file."""
    workers.program("micromamba")
    host = workers.new(PATH=workers.path, CONDA_FORGE=workers.channel, OLD_MICROMAMBA="1")
    assert workers.take(host, build(workers.write("tiny=1.0"))).ok
    start(host, workers.write("tiny=1.0"))
    failed = workers.take(host, build(workers.write("tiny=2.0")))
    assert "uses the environment train and micromamba cannot update it: wait" in failed.text
    assert check(workers, host, workers.write("tiny=1.0")).ok
    assert run(host, workers.write("tiny=1.0"), "tiny").text == "tiny 1.0"


def test_an_environment_whose_update_has_failed_is_updated_again_while_a_program_runs(workers, start):
    """It is not deleted, and what is reported is why the update fails."""
    host, section = workers.host(), workers.write("python=3.10")
    assert workers.take(host, build(section)).ok
    pid = start(host, section)
    changed = section.model_copy(update={"requirements": ["nmupy"]})
    for _ in range(2):
        failed = workers.take(host, build(changed))
        assert failed.text.splitlines()[-2] == "ERROR: No matching distribution found for nmupy"
        assert not check(workers, host, section).ok
    assert host.run("touch envs/train/mine").ok
    assert workers.take(host, build(section)).ok
    assert host.run("test -e envs/train/mine").ok
    assert not workers.take(host, build(changed)).ok
    os.kill(pid, signal.SIGKILL)
    assert workers.take(host, build(section)).ok
    assert not host.run("test -e envs/train/mine").ok


@pytest.mark.parametrize("found_ready", [False, True])
def test_an_environment_is_used_from_its_set_up_on(workers, found_ready):
    """The program of a job starts when all of its workers are ready."""
    host, section = workers.host(), workers.write("python=3.10")
    assert workers.take(host, build(section, key=JOB.key, job="job 1 of ann")).ok
    if found_ready:
        assert workers.take(host, tpux_conda.clean_up(JOB, section)).ok
        assert workers.take(host, tpux_conda.check(JOB, section)).ok
    other = section.model_copy(update={"requirements": ["-i https://a/tpu"]})
    failed = workers.take(host, build(other, key="bob-2", job="job 2 of bob"))
    assert " uses the environment train with packages from another index: " in failed.text.splitlines()[-1]
    assert check(workers, host, section).ok
    assert workers.take(host, tpux_conda.clean_up(JOB, section)).ok
    assert workers.take(host, build(other, key="bob-2", job="job 2 of bob")).ok


def test_what_packages_print_at_the_activation_does_not_hide_that_an_environment_is_used(workers, start):
    host = workers.new(PATH=workers.path, CONDA_FORGE=workers.channel, ACTIVATION="echo CUDA paths set")
    section = workers.write("python=3.10")
    assert workers.take(host, build(section, key=JOB.key, job="job 1 of ann")).ok
    start(host, section)
    assert host.run("rm -r .tpux/uses").ok
    other = section.model_copy(update={"requirements": ["-i https://a/tpu"]})
    assert "a program of a job" in workers.take(host, build(other, key="bob-2", job="job 2 of bob")).text
    assert check(workers, host, section).ok


def test_another_jobs_packages_are_not_kept_in_the_bucket(workers):
    host, first = workers.host(), workers.write("tiny=1.0")
    first = first.model_copy(update={"config_file": first.config_file.rename(first.config_file.with_name("first.yml"))})
    second = workers.write("tiny=2.0")
    steps = build(first, directory="bucket")
    step = next(steps)
    while "keep the environment in the bucket" not in getattr(step, "script", ""):
        answer = host.run(f"set -e\n{step.script}") if hasattr(step, "script") else host.put(step.source, step.remote)
        step = steps.send(answer or Result())
    assert workers.take(host, build(second)).ok
    kept = host.run(f"set -e\n{step.script}")
    assert (kept.code, kept.text) == (2, "another job has changed the environment meanwhile")
    assert host.run("ls bucket").text == ""


def test_an_archive_that_is_not_complete_is_not_kept_in_the_bucket(workers):
    host = workers.host()
    (workers.bin / "tar").write_text("#!/bin/sh\nexit 2\n")
    (workers.bin / "tar").chmod(0o755)
    assert workers.take(host, build(workers.write("tiny=1.0"), directory="bucket")).code == 2
    assert host.run("ls bucket").text == ""


def test_the_file_does_not_stay_on_the_worker(workers):
    """It may have the URL of an index with a password."""
    host = workers.host()
    assert workers.take(host, build(workers.write("tiny=1.0"))).ok
    assert not workers.take(host, build(workers.write("nowhere>=3"))).ok
    assert host.run("ls .tpux/conda | grep yml").text == ""


def test_no_copy_replaces_an_environment_in_which_a_program_runs(workers, start):
    host, new = workers.host(), workers.write("tiny=2.0")
    assert workers.take(host, build(new, directory="bucket")).ok
    assert workers.take(host, build(workers.write("tiny=1.0"))).ok
    assert host.run("touch envs/train/mine").ok
    start(host, new)
    assert workers.take(host, build(workers.write("tiny=2.0"), directory="bucket")).ok
    assert host.run("test -e envs/train/mine").ok
    assert run(host, new, "tiny").text == "tiny 2.0"


def test_a_file_that_does_not_solve_is_reported_and_the_environment_is_not_ready(workers):
    host, section = workers.host(), workers.write("tiny", "nowhere>=3")
    failed = workers.take(host, build(section))
    assert not failed.ok
    *_, reason, what = failed.text.splitlines()
    assert "nowhere" in reason
    assert what == "the environment train cannot be made from conda.config_file: see above"
    assert not check(workers, host, section).ok
    assert workers.take(host, build(workers.write("tiny"))).ok
    failed = workers.take(host, build(workers.write("tiny", "nowhere>=3")))
    assert not check(workers, host, section).ok, "an update that failed may have changed it"


def test_a_typo_in_the_requirements_is_named_last(workers):
    """A failed step is reported with its last lines; conda's own report has no reason."""
    host = workers.host()
    section = workers.write("python=3.10").model_copy(update={"requirements": ["nmupy"]})
    failed = workers.take(host, build(section))
    assert failed.code == 1
    assert failed.text.splitlines()[-2:] == [
        "ERROR: No matching distribution found for nmupy",
        "conda.requirements cannot be installed: correct them, or see above",
    ]
    assert not check(workers, host, section).ok


def test_an_environment_whose_setup_was_cut_off_is_created_again(workers):
    host, section = workers.host(), workers.write("tiny")
    steps = build(section)
    step = next(steps)
    while "create or update" not in getattr(step, "script", ""):
        answer = host.run(f"set -e\n{step.script}") if hasattr(step, "script") else host.put(step.source, step.remote)
        step = steps.send(answer or Result())
    host.run("mkdir -p envs/train/conda-meta envs/train/half-built")
    assert not check(workers, host, section).ok
    assert workers.take(host, build(section)).ok
    assert not host.run("test -e envs/train/half-built").ok
    host.run("touch envs/train/mine")
    assert workers.take(host, build(section)).ok
    assert host.run("test -e envs/train/mine").ok, "a complete one is kept"


def test_an_environment_that_cannot_be_removed_is_not_taken_for_a_new_one(workers):
    host, section = workers.host(), workers.write("python=3.10")
    assert workers.take(host, build(section)).ok
    (workers.bin / "rm").write_text('#!/bin/sh\n[ "$1" != -r ] || exit 1\nexec /bin/rm "$@"\n')
    (workers.bin / "rm").chmod(0o755)
    failed = workers.take(host, build(section.model_copy(update={"requirements": ["-i https://a/tpu"]})))
    assert failed.text.splitlines()[-1] == "the environment train cannot be removed"


def test_without_a_file(workers):
    host = workers.host()
    section = CondaSection(name="train", python="python3.10")  # type: ignore[call-arg]
    assert workers.take(host, build(section)).ok
    assert run(host, section, "python --version").text == "Python 3.10.4"
    newer = CondaSection(name="train", python="3.12")  # type: ignore[call-arg]
    assert workers.take(host, build(newer)).ok
    assert run(host, newer, "python --version").text == "Python 3.12.1"


def test_requirements_do_not_stay_on_a_worker_whose_job_is_stopped_during_their_installation(workers):
    host, section = workers.host(), workers.write("python=3.10")
    section = section.model_copy(update={"requirements": ["--index-url https://ann:s3cret@index/simple"]})
    assert workers.take(host, build(section)).ok
    host.put(b'#!/bin/sh\necho "$@"\nkill -TERM $PPID\n', "envs/train/bin/python", 0o700)
    stopped = workers.take(host, build(section))
    assert (stopped.code, stopped.text.split()[:3]) == (143, ["-m", "pip", "install"])
    assert not host.run("grep -r s3cret .tpux").ok


def test_jobs_that_share_a_machine_wait_for_each_others_set_up(workers, monkeypatch):
    monkeypatch.setattr(scripts, "SETUP_LOCK_TIMEOUT", 1)
    host, first, second = workers.host(), job(), replace(job(), id="000002")
    section = workers.write("python=3.10").model_copy(update={"requirements": ["numpy"]})
    other = section.model_copy(update={"requirements": ["torch"]})

    def set_up(one: Job, of: CondaSection) -> Result:
        return workers.take(host, tpux_conda.setup(one, of, Worker(0), []))

    steps = tpux_conda.setup(first, section, Worker(0), [])
    step = next(steps)
    while "install the requirements" not in getattr(step, "script", ""):
        answer = host.run(f"set -e\n{step.script}") if hasattr(step, "script") else host.put(step.source, step.remote)
        step = steps.send(answer or Result())
    waited = set_up(second, other)
    assert waited.code == 75
    assert waited.text.startswith(f"waiting for job 1 of {first.user}, which sets up the environment train\n")
    assert waited.text.endswith("wait for it or stop it, or set conda.name")
    assert workers.take(host, tpux_conda.clean_up(second, other)).ok
    assert host.run("cat .tpux/conda/train.txt").text == "numpy", "the first job goes on with it"
    assert workers.take(host, tpux_conda.clean_up(first, section)).ok
    assert not host.run("test -e .tpux/conda/train.txt").ok
    assert set_up(second, other).ok
    assert set_up(first, section).ok, "a job that has ended its set-up holds nobody up"


@pytest.mark.parametrize("old", [False, True])
def test_micromamba_is_preferred(workers, old):
    """An older one cannot update an environment from a file."""
    workers.program("micromamba")
    (workers.bin / "conda").write_text("#!/bin/sh\nexit 1\n")
    host = workers.new(PATH=workers.path, **({"OLD_MICROMAMBA": "1"} if old else {}))
    assert workers.take(host, build(workers.write("tiny=1.0"))).ok
    section = workers.write("tiny=2.0")
    assert workers.take(host, build(section)).ok
    assert check(workers, host, section).ok
    assert run(host, section, "tiny").text == "tiny 2.0"
    assert ("env update -n" in host.run("cat .cache-calls").text) != old


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_a_worker_copies_the_environment_with_conda_from_another_one(workers, tmp_path):
    """Both have the same home directory, each its own content."""
    host, other, section = workers.host(), tmp_path / "other", workers.write("tiny=1.0")
    (host.home / "miniforge3/bin").mkdir(parents=True)
    (workers.bin / "conda").rename(host.home / "miniforge3/bin/conda")
    (host.home / "miniforge3/pkgs").mkdir()
    assert workers.take(host, build(section)).ok
    shutil.copytree(host.home, other, symlinks=True)
    for name in ("miniforge3", "envs", ".tpux/conda", ".cache-calls"):
        host.run(f"rm -r {name}")
    there = 'mount --bind "$1" "$2" && cd "$2" && exec sh -s'
    peer = Peer(0, ("unshare", "--mount", "sh", "-c", there, "-", str(other), str(host.home)))
    assert workers.take(host, build(section, 1, [peer])).ok
    assert check(workers, host, section).ok
    assert run(host, section, "tiny").text == "tiny 1.0"
    assert "create" not in host.run("cat .cache-calls").text
    assert not host.run("test -e miniforge3/pkgs || test -e .tpux/conda/train.copy").ok


@pytest.mark.parametrize("breaks", ["rm -r envs/train", "rm -r envs/train/conda-meta"])
def test_nothing_runs_if_activation_fails(workers, breaks):
    host, section = workers.host(), workers.write("tiny")
    workers.take(host, build(section))
    host.run(breaks)
    ran = run(host, section, "touch one")
    assert (ran.code, host.run("test -e one").ok) == (127, False)
    assert "cannot activate the environment train; the command was not run" in ran.text


def test_conda_is_installed(workers, tmp_path):
    """An installation that was cut off is begun again; a file with another digest is not run."""
    (workers.bin / "conda").rename(workers.bin / "the-conda")
    installer = tmp_path / "installer.sh"
    target = (
        "mkdir -p $3/bin; [ -e $HOME/before ] || { touch $HOME/before $3/bin/conda; chmod 755 $3/bin/conda; exit 1; }\n"
    )
    installer.write_text(f"[ $1 $2 = -b -p ]\n{target}cp {workers.bin}/the-conda $3/bin/conda\n")
    source = {"installer_url": f"file://{installer}", "installer_sha256": "0" * 64}
    host, keys = workers.host(), {"name": "train", "config_file": workers.write("tiny").config_file}
    section = CondaSection.model_validate({**keys, **source})
    assert "conda is not installed" in check(workers, host, section).text
    assert f"not {'0' * 64}" in workers.take(host, build(section)).text
    source["installer_sha256"] = hashlib.sha256(installer.read_bytes()).hexdigest().upper()
    section = CondaSection.model_validate({**keys, **source})
    assert not workers.take(host, build(section)).ok
    assert workers.take(host, build(section)).ok
    assert run(host, section, "tiny").text == "tiny 2.0"
