"""A `TPUX_HOME` that is full, read-only or not a directory, and other users' jobs."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

NO_LOCKS = """
import errno, fcntl, os

def flock(*_):
    raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

fcntl.flock = flock
"""
SUCCEEDS = "command: {cmd: echo fine}\n"
root_only = pytest.mark.skipif(os.getuid() != 0, reason="only root may mount a small file system")


@pytest.fixture
def small_home(tpux) -> Iterator[Path]:
    """TPUX_HOME is a file system of 2 MB."""
    tpux.home.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tpux-test", tpux.home], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"cannot mount here: {mounted.stderr.decode()}")
    yield tpux.home
    tpux.close()
    subprocess.run(["umount", "-l", tpux.home], check=True)


def fill(home: Path) -> Path:
    """Use all free space."""
    filler = home / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (65536, 4096, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue
    return filler


@root_only
def test_create_on_a_full_disk_leaves_no_job(tpux, small_home):
    filler = fill(small_home)
    done = tpux("create", tpux.config(SUCCEEDS), code=1)
    assert "No space left on device" in done.stderr
    assert "free some space" in done.stderr
    assert tpux.json("list") == []
    filler.unlink()
    assert "[0] fine" in tpux("run", "job.yaml").stdout
    assert [job["id"] for job in tpux.json("list")] == ["000001"]


@root_only
def test_nothing_is_lost_if_the_disk_fills_up_while_a_job_runs(tpux, small_home):
    go = tpux.work / "go"
    script = f"echo begin; until [ -e {go} ]; do sleep 0.05; done; echo end"
    job = tpux.create(f"command:\n  cmd: {script}\n")
    tpux.until(lambda: tpux.output_so_far(job) == b"begin\n")
    tpux.until(lambda: tpux.events(job, "attempt-running"))
    filler = fill(small_home)
    assert "No space left" in tpux("stop", job, code=1).stderr, "a request that cannot be written is an error"
    tpux.kill_supervisor()
    assert tpux.show(job)["state"] == "running"
    go.touch()
    tpux.until(lambda: tpux.json("list") and tpux.supervisor(), "for a supervisor despite the full disk")
    filler.unlink()
    tpux("wait", job, code=None)
    # The program fails if its own output does not fit on the disk; tpux loses nothing that was written.
    assert tpux.show(job)["state"] in {"succeeded", "failed"}
    assert len(tpux.events(job, "attempt-started")) == 1
    assert tpux.output(job).startswith(b"begin\n")


@root_only
def test_a_full_disk_is_the_reason_that_is_shown(tpux, small_home):
    """Neither an event nor a new file can be written; the supervisor says so in the space of its last report."""
    go, done = tpux.work / "go", tpux.work / "done"
    script = f"echo begin; until [ -e {go} ]; do sleep 0.05; done; head -c 100000 /dev/zero; touch {done}; sleep 1000"
    job = tpux.create(f"command: {{cmd: '{script}', grace_period: 0}}\n")
    tpux.until(lambda: tpux.output_so_far(job) == b"begin\n")
    tpux.until(lambda: tpux.events(job, "attempt-running"))
    tpux("supervisor", "stop")
    go.touch()
    tpux.until(done.exists)
    filler = fill(small_home)
    tpux("supervisor", "start")
    expected = f"the disk is full: free some space in {tpux.home}; retrying"
    tpux.until(lambda: tpux.show(job)["why"] == expected)
    assert tpux.json("list")[0]["why"] == expected
    filler.unlink()
    tpux.until(lambda: len(tpux.output(job)) == 100006)
    tpux.until(lambda: "full" not in tpux.show(job)["why"])
    tpux("stop", job)


@root_only
def test_logs_that_cannot_be_written_are_written_later(tpux):
    """The disk of the logs is full, that of the program is not."""
    go = tpux.work / "go"
    script = f"echo begin; until [ -e {go} ]; do sleep 0.05; done; seq 1 200000; echo end"
    job = tpux.create(f"command:\n  cmd: {script}\n")
    tpux.until(lambda: tpux.output_so_far(job) == b"begin\n")
    logs = tpux.directory(job) / "logs/attempt-1"
    content = logs.parent / "saved"
    logs.rename(content)
    logs.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tpux-test", logs], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"cannot mount here: {mounted.stderr.decode()}")
    try:
        (logs / "command_worker_0.log").write_bytes(b"begin\n")
        go.touch()
        tpux.until(lambda: "No space left" in tpux.log())
        assert tpux.show(job)["state"] == "running"
        subprocess.run(["mount", "-o", "remount,size=8m", logs], check=True)
        tpux("wait", job)
        expected = b"begin\n" + b"".join(b"%d\n" % i for i in range(1, 200001)) + b"end\n"
        assert tpux.output(job) == expected
    finally:
        tpux("supervisor", "stop")
        subprocess.run(["umount", "-l", logs], check=True)


@pytest.mark.parametrize("home", ["/proc/tpux", "FILE"])
def test_a_home_that_cannot_be_written_to(runner, home):
    file = runner.work / "file"
    file.touch()
    runner.env["TPUX_HOME"] = home.replace("FILE", str(file))
    done = runner("run", runner.config(SUCCEEDS), code=1)
    assert "TPUX_HOME" in done.stderr
    for command in (["list"], ["supervisor", "status"], ["show", "1"]):
        runner(*command, code=None)


@root_only
def test_a_read_only_home_can_be_read(tpux, small_home):
    tpux("run", tpux.config(SUCCEEDS))
    tpux("supervisor", "stop")
    read_only = ["mount", "-o", "remount,ro", small_home]
    tpux.until(lambda: subprocess.run(read_only, check=False).returncode == 0, "for files to be closed")
    try:
        assert "Read-only file system" in tpux("run", "job.yaml", code=1).stderr
        assert tpux.json("list")[0]["state"] == "succeeded"
        assert tpux("logs", "1", "--worker", "0").stdout == "fine\n"
        for command in (["stop", "1", "--release"], ["rerun", "1"], ["delete", "1", "-y"]):
            assert "Read-only file system" in tpux(*command, code=1).stderr
    finally:
        subprocess.run(["mount", "-o", "remount,rw", small_home], check=True)


def test_another_users_job_cannot_be_acted_on(tpux):
    tpux.env["TPUX_USER"] = "ann"
    job = tpux.create(SUCCEEDS)
    tpux("wait", job)
    tpux.env["TPUX_USER"] = "bob"
    acts = (["show"], ["logs"], ["wait"], ["stop"], ["cancel"], ["resume"], ["rerun"], ["delete", "-y"])
    for act in acts:
        done = tpux(*act, job, code=2)
        assert f"job {int(job)} belongs to ann" in done.stderr
    assert tpux.json("list") == []
    assert [row["user"] for row in tpux.json("list", "--all-users")] == ["ann"]
    assert tpux.create(SUCCEEDS) == "000002"
    tpux("wait", "2")
    tpux("supervisor", "stop")
    tpux.env["TPUX_USER"] = "ann"


@pytest.mark.parametrize("user", ["../ann", ".tpux", "a b"])
def test_a_user_name_that_is_no_valid_directory_name(runner, user):
    runner.env["TPUX_USER"] = user
    assert "TPUX_USER" in runner("run", runner.config(SUCCEEDS), code=2).stderr
    assert not runner.home.exists()
    runner.env["TPUX_USER"] = "ann"


def test_a_home_directory_that_is_not_known(runner):
    before, runner.env["TPUX_HOME"] = runner.env["TPUX_HOME"], "~nobody-here/tpux"
    assert "TPUX_HOME: the home directory in ~nobody-here/tpux is not known" in runner("list", code=2).stderr
    runner.env["TPUX_HOME"] = before


def test_an_invalid_clock_rate(runner):
    runner.env["TPUX_CLOCK_RATE"] = "fast"
    assert "TPUX_CLOCK_RATE" in runner("run", runner.config(SUCCEEDS), code=2).stderr
    runner.env["TPUX_CLOCK_RATE"] = "1"


@pytest.mark.parametrize("job", ["7", "nothing", "../000001", ""])
def test_an_id_that_does_not_exist(runner, job):
    assert "there is no job" in runner("show", job, code=2).stderr


@pytest.mark.parametrize("command", [["logs"], ["wait"], ["stop"], ["resume"], ["delete", "-y"]])
def test_every_command_reports_an_unknown_id(runner, command):
    assert "there is no job" in runner(*command, "7", code=2).stderr


def test_a_file_system_without_locks(tpux):
    site = tpux.work / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(NO_LOCKS)
    tpux.env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH")]))
    done = tpux("create", tpux.config(SUCCEEDS), code=1)
    assert "the file system cannot lock files: No locks available" in done.stderr
    assert "set TPUX_HOME" in done.stderr
    assert "another tpux command" not in done.stderr
