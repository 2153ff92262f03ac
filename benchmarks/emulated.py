"""On emulated TPU VMs, real ssh servers: from READY to a job's first lines, and `tpux exec` beside gcloud and OpenSSH.

The workers share the machine with tpux: what 64 bash and sshd cost is in the figures, as it is not on the cloud.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from statistics import median

from benchmarks.measure import Row, at_most, in_turns, until
from benchmarks.world import TPUX, World, running, world
from tpux.store.record import Record
from tpux_emulator.emulator import Emulator

ROUNDS = 3
NODE, ZONE = "bench", "us-central2-b"
JOB = """
job: {{name: {node}}}
tpu:
  allocation_mode: tpu-vm
  accelerator: {accelerator}
  name: {node}
  zone: {zone}
  project: emulated
  endpoint: {url}
ssh: {{port: {port}}}
command: {{cmd: "echo here; exec sleep 600", workers: all}}
"""


@dataclass(frozen=True)
class Rehearsal:
    """An emulated cloud, and a tpux that takes it for Google's."""

    cloud: Emulator
    one: World

    def begin(self, accelerator: str) -> Record:
        """A job that was just made, under a supervisor that has just begun; the one before it is gone by then."""
        if self.cloud.status()["nodes"]:
            self.one.tpux("delete", "--name", NODE, "--yes")
            self.cloud.wait_for(NODE, "GONE", seconds=30)
        self.one.tpux("supervisor", "stop")
        text = JOB.format(node=NODE, zone=ZONE, accelerator=accelerator, url=self.cloud.url, port=self.cloud.ssh_port)
        (record,) = self.one.create(self.one.config(text), 1)
        self.one.start()
        return record

    def ready_at(self) -> float:
        """When the node was READY, as the emulator's log has it; the API has no such time."""
        lines = self.cloud.home.log.read_text().splitlines()
        line = next(line for line in reversed(lines) if f"node {NODE}: " in line and line.endswith("-> READY"))
        return datetime.strptime(line[:23], "%Y-%m-%d %H:%M:%S.%f").astimezone().timestamp()

    def first_lines(self, accelerator: str, workers: int) -> tuple[float, float]:
        """Seconds from the machines' arrival to a line of every worker; and from the node's own READY."""
        record = self.begin(accelerator)
        logs = [record.logs / "attempt-1" / f"command_worker_{index}.log" for index in range(workers)]
        until(
            lambda: all(log.exists() and b"\n" in log.read_bytes() for log in logs),
            within=60,
            why=f"the first lines of {workers} workers",
            every=0.01,
        )
        there = time.time()
        allocated = next(event.at for event, _ in record.events() if event.type == "allocated")
        return there - allocated, there - self.ready_at()

    def gcloud(self) -> Callable[[], float] | None:
        """What Google's documentation tells to use, with keys and settings of its own."""
        if shutil.which("gcloud") is None or self.cloud.ssh_port != 22:  # it knows no other port
            return None
        home = self.one.directory / "gcloud"
        (home / ".ssh").mkdir(parents=True, mode=0o700)
        # Without one it makes one, and uses it for ever: a cheaper kind would be no user's.
        key = home / ".ssh" / "google_compute_engine"
        subprocess.run(["ssh-keygen", "-q", "-t", "rsa", "-b", "3072", "-N", "", "-f", key], check=True)
        own = {"HOME": str(home), "CLOUDSDK_CONFIG": str(home / "config")}
        env = self.one.env | self.cloud.environment(zone=ZONE) | own
        return lambda: _timed(
            ["gcloud", "compute", "tpus", "tpu-vm", "ssh", NODE, "--worker=all", "--command=true"], env
        )

    def openssh(self, job: str, workers: int) -> Callable[[], float]:
        """A process a worker, all at once, with tpux's own key and the pinned host keys."""
        config = self.one.directory / "ssh_config"
        config.write_text(self.one.tpux("ssh-config", job))
        commands = [["ssh", "-F", config, f"tpux-{int(job)}-{index}", "true"] for index in range(workers)]

        def all_at_once() -> float:
            began = time.monotonic()
            with ThreadPoolExecutor(workers) as pool:
                list(pool.map(lambda command: _timed(command, self.one.env), commands))
            return time.monotonic() - began

        return all_at_once


def rows() -> list[Row]:
    """First lines of 4 and of 64 workers; the fan-out over 8."""
    if lacking := _lacking():
        return [Row("on emulated TPU VMs", f"not measured: {lacking}")]
    with world() as one, Emulator(one.directory / "emulator", clock_rate=1) as cloud:
        # As an installed program is: compiled once, wherever this Python may not write.
        one.env |= {"PYTHONPYCACHEPREFIX": str(one.directory / "pycache"), "PYTHONDONTWRITEBYTECODE": ""}
        one.env |= cloud.environment(zone=ZONE)
        rehearsal = Rehearsal(cloud, one)
        try:
            return [*_first(rehearsal, "v4-32", 4, 2, ROUNDS), *_first(rehearsal, "v4-512", 64, 8, 1), _exec(rehearsal)]
        finally:
            one.tpux("supervisor", "stop")  # before the cloud ends with its nodes: it would ask for others


def _first(rehearsal: Rehearsal, accelerator: str, workers: int, target: float, rounds: int) -> list[Row]:
    taken = [rehearsal.first_lines(accelerator, workers) for _ in range(rounds)]
    seconds, since_ready = (median(values) for values in zip(*taken, strict=True))
    note = f"{since_ready:.2g} s from the node's own READY"
    return [at_most(f"from READY to the first line of all {workers} workers", seconds, target, unit=" s", note=note)]


def _exec(rehearsal: Rehearsal) -> Row:
    record = rehearsal.begin("v4-64")
    job = record.directory.name
    until(lambda: running(record), within=60, why="a running job")
    ways = {"tpux": lambda: _timed([str(TPUX), "exec", job, "--", "true"], rehearsal.one.env)}
    ways["OpenSSH"] = rehearsal.openssh(job, 8)
    if gcloud := rehearsal.gcloud():
        ways["gcloud"] = gcloud
    times = dict(zip(ways, map(median, in_turns(ROUNDS, *ways.values())), strict=True))
    told = ", ".join(f"{way} {seconds:.2f} s" for way, seconds in times.items())
    told += "" if gcloud else "; there is no gcloud here, or no port 22"
    more = times.pop("tpux") - min(times.values())
    return at_most(
        "`tpux exec` of `true` on 8 emulated workers: more than the fastest", more, 0.5, unit=" s", note=told
    )


def _timed(command: Sequence[str | Path], env: dict[str, str]) -> float:
    began = time.monotonic()
    done = subprocess.run(command, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{command[0]} exited with {done.returncode}: {done.stderr[-1000:]}")
    return time.monotonic() - began


def _lacking() -> str:
    if os.geteuid() != 0:
        return "workers with a root of their own need root"
    return "" if shutil.which("sshd") or Path("/usr/sbin/sshd").exists() else "sshd is not installed"
