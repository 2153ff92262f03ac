"""Mounts on workers: through real FUSE, of buckets on loopback."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import suppress

import pytest

from tpux.testing import run_job
from tpux_gcsfuse import scripts


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
    servers = subprocess.run(["pgrep", "-f", f"rclone mount .*{host.home}/gcs"], capture_output=True).stdout.split()
    for server in servers:
        os.kill(int(server), number)
    deadline = time.monotonic() + 30
    while (seen := fuse.check(job, host)).ok:
        assert time.monotonic() < deadline
    assert reason in seen.text
    if number == signal.SIGKILL:
        host.run("rm -r .tpux/gcsfuse")  # as if another tool had made that mount
    assert fuse.setup(job, host).ok
    assert fuse.check(job, host).ok
    for server in servers:
        with suppress(ProcessLookupError):
            os.kill(int(server), signal.SIGKILL)


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
