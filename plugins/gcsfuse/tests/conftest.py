"""Real FUSE mounts of buckets that a server on loopback has, through a `gcsfuse` that mounts with rclone."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

import tpux_gcsfuse
from tpux import Finding, Host, Job, Result, Sh, Steps
from tpux_local.mounts import mounts_below
from tpux_testing import job as new_job

GCSFUSE = Path(__file__).with_name("gcsfuse")


def missing_for_fuse() -> str:
    """Return what a FUSE mount needs and this machine lacks; "" if it lacks nothing."""
    if lacks := [program for program in ("rclone", "fusermount3", "curl") if shutil.which(program) is None]:
        return f"{', '.join(lacks)} missing: scripts/test-deps.sh installs them"
    return "" if os.access("/dev/fuse", os.R_OK | os.W_OK) else "/dev/fuse cannot be opened"


@dataclass
class Cluster:
    """Workers with a `gcsfuse`, and the buckets.

    Attributes:
        endpoint: the server's address.
        bin: the first directory of the workers' PATH.
    """

    endpoint: str
    bin: Path
    new_local_host: Callable[..., Host]
    hosts: list[Host] = field(default_factory=list)

    def new_host(self) -> Host:
        self.hosts.append(self.new_local_host(PATH=f"{self.bin}{os.pathsep}{os.environ['PATH']}"))
        return self.hosts[-1]

    def program(self, name: str, script: str) -> None:
        """Put a shell script on the workers' PATH."""
        (self.bin / name).unlink(missing_ok=True)  # never through a link to the machine's own program
        (self.bin / name).write_text(f"#!/bin/sh\n{script}\n")
        (self.bin / name).chmod(0o755)

    def calls(self) -> list[str]:
        """Return the arguments of each call of gcsfuse."""
        path = self.bin / "calls"
        return path.read_text().splitlines() if path.exists() else []

    def read(self, bucket: str, name: str) -> str:
        """Return the content of an object, read from the server; rclone uploads a file after it was closed."""
        deadline = time.monotonic() + 60
        while True:
            try:
                with urlopen(f"{self.endpoint}/storage/v1/b/{bucket}/o/{name}?alt=media") as answer:
                    return str(answer.read().decode())
            except HTTPError:
                assert time.monotonic() < deadline
                time.sleep(0.05)

    def job(self, **section: object) -> Job:
        return new_job({"gcsfuse": {"bucket_name": "data", "mount_path": "~/gcs", **section}})

    def run(self, steps: Steps, host: Host) -> Result:
        """Run steps until one fails; return the result of the last one."""
        result: Result | None = None
        while True:
            try:
                step = next(steps) if result is None else steps.send(result)
            except StopIteration:
                return result or Result()
            assert isinstance(step, Sh)
            result = host.run(f"set -e\n{step.script}", timeout=60)
            if not result.ok:
                steps.close()
                return result

    def setup(self, job: Job, host: Host) -> Result:
        return self.run(tpux_gcsfuse.setup(job=job, config=job.sections["gcsfuse"]), host)

    def check(self, job: Job, host: Host) -> Result:
        return self.run(tpux_gcsfuse.check(job=job, config=job.sections["gcsfuse"]), host)

    def solve(self, job: Job, host: Host) -> Result:
        steps = tpux_gcsfuse.solve(job=job, config=job.sections["gcsfuse"])
        return self.run(steps, host)

    def diagnose(self, job: Job, host: Host) -> list[Finding]:
        found = list[Finding]()

        def kept() -> Steps:
            found.extend((yield from tpux_gcsfuse.diagnose(job=job, config=job.sections["gcsfuse"])))

        assert self.run(kept(), host).ok
        return found


@pytest.fixture(scope="session")
def endpoint() -> Iterator[str]:
    """Serve the buckets `data` and `models`."""
    from gcp_storage_emulator.handlers import buckets
    from gcp_storage_emulator.server import create_server

    server = create_server("127.0.0.1", 0, in_memory=True, default_bucket="data")
    buckets.create_bucket("models", server._storage)
    server.start()
    yield f"http://127.0.0.1:{server._api._httpd.server_port}"
    server.stop()


@pytest.fixture
def cluster(endpoint, local_host, tmp_path, tmp_path_factory, monkeypatch) -> Iterator[Cluster]:
    """Workers that have no gcsfuse of this machine's own, if it has one."""
    programs = tmp_path / "bin"
    programs.mkdir()
    cluster = Cluster(endpoint, programs, local_host)
    cluster.program(
        "gcsfuse", f'export STORAGE_ENDPOINT={endpoint} GCSFUSE_CALLS={programs}/calls\nexec {GCSFUSE} "$@"'
    )
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    yield cluster
    for path in mounts_below(tmp_path_factory.getbasetemp()):  # else pytest would remove what is in the bucket
        subprocess.run(["fusermount3", "-u", "-z", path])


@pytest.fixture
def fuse(cluster: Cluster) -> Cluster:
    """Return workers that can mount."""
    if problem := missing_for_fuse():
        pytest.skip(problem)
    return cluster
