"""Mounts on workers: through real FUSE, of buckets on loopback."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from tpux.lifecycle.connection import connect_job
from tpux_doctor.examine import diagnose_machines
from tpux_doctor.facts import facts_step, parse_facts
from tpux_gcsfuse import scripts
from tpux_testing import run_job
from tpux_testing.sandbox import Sandbox

DEAD = "Transport endpoint is not connected"
TPUX = Path(sys.executable).with_name("tpux")
SILENT_SERVER = Path(__file__).with_name("silent_server.py")


def servers_of(path: object) -> list[int]:
    """Return the processes that serve the mount at a path."""
    found = subprocess.run(["pgrep", "-f", f"rclone mount .* {path} "], capture_output=True, check=False)
    return [int(pid) for pid in found.stdout.split()]


def until(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline


def test_what_a_worker_writes_is_in_the_bucket_and_on_the_other_worker(fuse):
    job, (first, second) = fuse.job(), (fuse.new_host(), fuse.new_host())
    assert "nothing is mounted at" in fuse.check(job, first).text
    for host in (first, second):
        assert fuse.setup(job, host).ok
        assert fuse.check(job, host).ok
    assert first.run("mkdir gcs/run && echo 'step 7' >gcs/run/log").ok
    assert fuse.read("data", "run%2Flog") == "step 7\n"
    assert second.run("cat gcs/run/log").text == "step 7"
    assert fuse.setup(job, first).text == "data is mounted already"
    assert len(fuse.calls()) == 2


def test_the_script_before_a_mount_makes_what_the_cache_needs_and_runs_only_for_a_new_mount(fuse):
    prefix = "echo ran >>runs\nmkdir -p ram && [[ -d ram ]]"
    job, host = fuse.job(cache={"dir": "ram/cache", "prefix": prefix}), fuse.new_host()
    assert fuse.setup(job, host).ok
    assert fuse.setup(job, host).ok
    assert host.run("cat runs; ls ram").text == "ran\ncache"
    broken = fuse.job(mount_path="~/other", cache={"dir": "ram/cache", "prefix": "echo no memory; exit 7"})
    assert fuse.setup(broken, host).text == "no memory\ngcsfuse.cache.prefix ended with exit code 7"


def test_a_directory_of_a_cache_that_cannot_be_made_is_named_with_its_key(fuse):
    job, host = fuse.job(cache={"dir": "file/cache"}), fuse.new_host()
    assert host.run("touch file").ok
    assert "file/cache: set gcsfuse.cache.dir to another one" in fuse.setup(job, host).text


@pytest.mark.parametrize("path", ["~/my data", "~/gcs//", r"~/a\b", "link/gcs", "~/link/../gcs"])
def test_the_path_of_a_mount_may_be_written_in_any_way(fuse, path):
    job, host = fuse.job(mount_path=path), fuse.new_host()
    assert host.run("mkdir real && ln -s real link").ok
    assert "nothing is mounted at" in fuse.check(job, host).text
    assert fuse.setup(job, host).ok
    assert fuse.check(job, host).ok
    assert fuse.setup(job, host).text == "data is mounted already"


def test_the_options_are_gcsfuses(fuse):
    cache = {
        "dir": "~/cache",
        "metadata_ttl_secs": -1,
        "stat_cache_max_size_mb": 32,
        "type_cache_max_size_mb": 4,
        "file_cache_max_size_mb": 100,
        "cache_file_for_range_read": True,
        "enable_parallel_downloads": None,
    }
    extra = {"bucket_name": "gs://models/", "mount_path": "models", "options": ["-o ro", "--app-name='a b'"]}
    host = fuse.new_host()
    assert fuse.setup(fuse.job(cache=cache, extra_mounts=[extra]), host).ok
    default = "--implicit-dirs --dir-mode=777 --file-mode=777"
    home = host.run("pwd -P").text
    expected = (
        f"--cache-dir={home}/cache {default} --metadata-cache-ttl-secs=-1 --stat-cache-max-size-mb=32 "
        "--type-cache-max-size-mb=4 --file-cache-max-size-mb=100 --file-cache-cache-file-for-range-read=true "
        f"data {home}/gcs"
    )
    assert fuse.calls() == [expected, f"{default} -o ro --app-name=a b models {home}/models"]


def test_changed_options_are_used_by_a_new_mount_unless_a_file_is_open(fuse):
    host = fuse.new_host()
    assert fuse.setup(fuse.job(), host).ok
    changed = fuse.job(options=["--app-name=train"])
    assert "not the bucket data with the options of the config" in fuse.check(changed, host).text
    home = host.run("pwd -P").text
    busy = subprocess.Popen(["sleep", "100"], cwd=f"{home}/gcs")
    assert "a program has a file open there" in fuse.setup(changed, host).text
    busy.kill()
    busy.wait()
    assert fuse.setup(changed, host).ok
    assert fuse.check(changed, host).ok
    assert "--app-name=train" in fuse.calls()[-1]


@pytest.mark.parametrize(
    ("number", "reason"),
    [(signal.SIGKILL, "Transport endpoint is not connected"), (signal.SIGSTOP, "does not answer within 1 s")],
)
def test_a_mount_whose_server_died_or_hangs_is_replaced(fuse, monkeypatch, number, reason):
    monkeypatch.setattr(scripts, "ANSWER_TIMEOUT", 1)
    job, host = fuse.job(), fuse.new_host()
    assert fuse.setup(job, host).ok
    servers = servers_of(f"{host.home}/gcs")
    for server in servers:
        os.kill(server, number)
    until(lambda: not fuse.check(job, host).ok)
    assert reason in fuse.check(job, host).text
    if number == signal.SIGKILL:
        host.run("rm -r .tpux/gcsfuse")  # as if another tool had made that mount
    assert fuse.setup(job, host).ok
    assert fuse.check(job, host).ok
    for server in servers:
        with suppress(ProcessLookupError):
            os.kill(server, signal.SIGKILL)


@pytest.mark.system
def test_a_mount_whose_server_reads_and_never_answers_is_replaced(fuse, monkeypatch):
    """Whoever waits for the answer to a question that was read cannot be killed."""
    monkeypatch.setattr(scripts, "ANSWER_TIMEOUT", 1)
    job, host = fuse.job(), fuse.new_host()
    assert fuse.setup(job, host).ok
    assert host.run("fusermount3 -u gcs").ok
    home = host.run("pwd -P").text
    with subprocess.Popen([sys.executable, SILENT_SERVER, f"{host.home}/gcs"], stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        server.stdout.readline()
        try:
            assert "does not answer within 1 s" in fuse.check(job, host).text
            found = parse_facts(host.run(facts_step((".", "gcs"), mounts=True).script).output)
            [mount] = [one for one in found.mounts if one.at == f"{home}/gcs"]
            assert mount.problem == "no answer within 5 s"
            assert found.disks, "that of the home directory, and others are examined nevertheless"
            assert fuse.setup(job, host).ok
            assert fuse.check(job, host).ok
            waiting = ["pgrep", "-f", f"stat {host.home}/gcs/.tpux-check"]
            assert subprocess.run(waiting, capture_output=True, check=False).stdout == b""
        finally:
            server.kill()


def test_solve_mounts_again_what_is_dead_and_leaves_alone_what_is_alive(fuse, monkeypatch):
    monkeypatch.setattr(scripts, "ANSWER_TIMEOUT", 1)
    extra = [{"bucket_name": "models", "mount_path": "models"}, {"bucket_name": "models", "mount_path": "slow"}]
    job, host = fuse.job(extra_mounts=extra), fuse.new_host()
    assert fuse.diagnose(job, host) == [], "nothing is mounted yet, which is no dead mount"
    assert fuse.setup(job, host).ok
    [dead], [alive], [slow] = (servers_of(f"{host.home}/{path}") for path in ("gcs", "models", "slow"))
    os.kill(dead, signal.SIGKILL)
    os.kill(slow, signal.SIGSTOP)
    try:
        home = host.run("pwd -P").text
        until(lambda: len(fuse.diagnose(job, host)) == 2)
        assert [(one.level, one.where, one.message, one.hint) for one in fuse.diagnose(job, host)] == [
            (
                "error",
                f"{home}/gcs",
                f"the bucket data at {home}/gcs: the mounted bucket cannot be read: {DEAD}",
                "mount it again: tpux solve 1",
            ),
            (
                "error",
                f"{home}/slow",
                f"the bucket models at {home}/slow: the mounted bucket does not answer within 1 s",
                "mount it again: tpux setup 1",
            ),
        ]
        assert fuse.solve(job, host).ok
    finally:
        os.kill(slow, signal.SIGCONT)
    assert fuse.check(job, host).ok
    assert (servers_of(f"{host.home}/models"), servers_of(f"{host.home}/slow")) == ([alive], [slow])
    assert len(fuse.calls()) == 4
    unused = replace(job, modules=())
    os.kill(*servers_of(f"{host.home}/gcs"), signal.SIGKILL)
    until(lambda: fuse.diagnose(job, host))
    assert fuse.diagnose(unused, host) == []
    assert fuse.solve(unused, host).text == ""
    assert not fuse.check(job, host).ok, "a job that does not use the module repairs nothing"


@pytest.mark.system
def test_a_program_whose_mount_died_is_resumed_with_a_new_one_and_solve_repairs_it(fuse):
    """The first two attempts kill the server of their own mount."""
    lose = (
        'if [ $TPUX_ATTEMPT -lt 3 ]; then kill -9 $(pgrep -f "rclone mount .* $HOME/gcs "); '
        "while stat gcs >/dev/null 2>&1; do sleep 0.05; done; fi\n"
    )
    config = {
        "job": {"rule": "resume", "max_restarts": {"infra": 1}},
        "gcsfuse": {"bucket_name": "data", "mount_path": "gcs"},
        "command": {"cmd": f'echo $TPUX_ATTEMPT >>gcs/attempts\n{lose}cat "$HOME/gcs/attempts"'},
    }
    with Sandbox() as sandbox:
        job = sandbox.start(config)
        failure = job.until(lambda state: state.ended).failure
        assert (job.state.attempt, failure.kind) == (2, "infra")
        assert failure.evidence.endswith(f"/gcs/attempts: {DEAD}")
        connection = connect_job("1")
        errors = [one.finding for one in diagnose_machines(connection, connection.allocation.workers)]
        home = connection.allocation.workers[0].details["home"]  # not the dead mounts of other tests
        [error] = [one for one in errors if one.level == "error" and home in f"{one.where} {one.message}"]
        assert error.hint == "mount it again: tpux solve 1", "core's own finding about the mount is left out"
        planned = subprocess.run([TPUX, "solve", "1", "--dry-run"], capture_output=True, text=True, check=False)
        assert "worker 0  gcsfuse  would unmount /" in planned.stdout
        assert f"/gcs ({DEAD}) and mount the bucket data there again\n" in planned.stdout
        solved = subprocess.run([TPUX, "solve", "1"], capture_output=True, text=True, check=False)
        assert solved.returncode == 0, solved.stderr
        assert "worker 0  gcsfuse  " in solved.stdout
        assert f"{DEAD}; unmounting it" in solved.stdout
        assert "nothing to repair" in subprocess.run([TPUX, "solve", "1"], capture_output=True, text=True).stdout
        job.request("resume")
        job.until(lambda state: state.state == "succeeded")
        assert job.output() == "1\n2\n3\n"


def test_what_others_have_mounted_is_used_or_left_alone(fuse):
    host = fuse.new_host()
    assert host.run("mkdir gcs && gcsfuse data gcs").ok
    assert fuse.check(fuse.job(), host).ok
    assert fuse.setup(fuse.job(), host).text == "data is mounted already"
    other = fuse.new_host()
    assert other.run("mkdir gcs && gcsfuse models gcs").ok
    refused = fuse.setup(fuse.job(), other)
    assert not refused.ok
    assert "models is mounted at" in refused.text
    assert other.run("ls gcs").ok


def test_a_job_writes_its_output_into_the_bucket(fuse):
    """The local worker's directory, which is deleted at the end, does not take the bucket's content along."""
    ran = run_job(
        {
            "job": {"output_dir": "~/gcs/runs/${job.id}"},
            "gcsfuse": {"bucket_name": "data", "mount_path": "gcs"},
            "command": {"cmd": 'mkdir -p "$TPUX_OUTPUT_DIR"; echo done >"$TPUX_OUTPUT_DIR/result"; pwd'},
        }
    )
    assert ran.state == "succeeded"
    assert fuse.read("data", "runs%2F000001%2Fattempt-1%2Fresult") == "done\n"


@pytest.mark.parametrize(
    ("bucket", "message"),
    [
        ("no-such-bucket", "there is no bucket no-such-bucket: correct gcsfuse.bucket_name"),
        ("forbidden", "the worker may not read the bucket forbidden: grant its service account"),
    ],
)
def test_a_bucket_that_cannot_be_mounted(cluster, bucket, message):
    failed = cluster.setup(cluster.job(bucket_name=bucket), cluster.new_host())
    assert not failed.ok
    assert message in failed.text.splitlines()[-1]


@pytest.mark.parametrize(
    ("before", "path", "message"),
    [
        ("echo x >gcs", "~/gcs", "gcs is a file"),
        ("mkdir gcs; echo x >gcs/notes", "~/gcs", "gcs has files, which the mount would hide"),
        ("echo x >gcs", "gcs/below", "cannot create the directory"),
    ],
)
def test_a_path_where_nothing_can_be_mounted(cluster, before, path, message):
    host = cluster.new_host()
    host.run(before)
    failed = cluster.setup(cluster.job(mount_path=path), host)
    assert not failed.ok
    assert message in failed.text.splitlines()[-1]
    assert cluster.calls() == []
