"""Emulated TPU VMs with real SSH servers: time from READY to first output; `tpux exec`, gcloud, fabric and OpenSSH.

The workers run on the same machine as tpux, so the results include the cost of up to 64 processes of bash and sshd.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from statistics import median

from benchmarks.measure import Row, alternate, at_most, until
from benchmarks.sandbox import TPUX, Sandbox, running, temporary_sandbox
from tpux.store.record import Record
from tpux_emulator.emulator import Emulator

ROUNDS = 3
NAME, ZONE = "bench", "us-central2-b"
USER = "bench"
"""Whom gcloud logs in as. Its default is the name of the user here, and the images refuse root."""
# As in fabric's documentation for many hosts, with the settings of `tpux ssh-config`.
FABRIC = """
import sys
from fabric import Config, ThreadingGroup
path, *hosts = sys.argv[1:]
group = ThreadingGroup(*hosts, config=Config(runtime_ssh_path=path))
assert all(result.ok for result in group.run("true", hide=True).values())
"""
JOB = """
job: {{name: {name}}}
tpu:
  allocation_mode: tpu-vm
  accelerator: {accelerator}
  zone: {zone}
  project: emulated
  endpoint: {url}
ssh: {{port: {port}}}
command: {{cmd: "echo here; exec sleep 600", workers: all}}
"""


@dataclass(frozen=True)
class EmulatedCloud:
    """The emulator, and a sandbox whose jobs use it as the cloud."""

    cloud: Emulator
    sandbox: Sandbox

    def begin(self, accelerator: str) -> Record:
        """Delete the previous job and its node, create a new job, and start a new supervisor for it."""
        if self.cloud.status()["nodes"]:
            node = self.node()
            self.sandbox.tpux("delete", "--name", NAME, "--yes")
            self.cloud.wait_for(node, "GONE", seconds=30)
        self.sandbox.tpux("supervisor", "stop")
        text = JOB.format(name=NAME, zone=ZONE, accelerator=accelerator, url=self.cloud.url, port=self.cloud.ssh_port)
        (record,) = self.sandbox.create(self.sandbox.config(text), 1)
        self.sandbox.start()
        return record

    def node(self) -> str:
        """Return the name of the only node."""
        nodes = self.cloud.status()["nodes"]
        assert isinstance(nodes, list)
        (node,) = nodes
        assert isinstance(node, dict)
        return str(node["name"]).rpartition("/")[2]

    def ready_at(self) -> float:
        """Return the time when the node became READY, from the emulator's log, since the API does not report it."""
        node, lines = self.node(), self.cloud.home.log.read_text().splitlines()
        line = next(line for line in reversed(lines) if f"node {node}: " in line and line.endswith("-> READY"))
        return datetime.strptime(line[:23], "%Y-%m-%d %H:%M:%S.%f").astimezone().timestamp()

    def first_lines(self, accelerator: str, workers: int) -> tuple[float, float]:
        """Measure the time until each worker has printed a line.

        Returns:
            Seconds since tpux saw the machines, and seconds since the node became READY.
        """
        record = self.begin(accelerator)
        logs = [record.logs / "attempt-1" / f"command_worker_{index}.log" for index in range(workers)]
        until(
            lambda: all(log.exists() and b"\n" in log.read_bytes() for log in logs),
            within=60,
            why=f"the first output of {workers} workers",
            every=0.01,
        )
        printed = time.time()
        allocated = next(event.at for event, _ in record.events() if event.type == "allocated")
        return printed - allocated, printed - self.ready_at()

    def gcloud(self) -> Callable[[], float] | None:
        """Return a measurement of `gcloud compute tpus tpu-vm ssh --worker=all`, or None if it cannot run here.

        gcloud uses its own keys and settings.
        """
        if shutil.which("gcloud") is None or self.cloud.ssh_port != 22:  # gcloud supports no other port
            return None
        home = self.sandbox.directory / "gcloud"
        (home / ".ssh").mkdir(parents=True, mode=0o700)
        # gcloud would create this key itself; RSA 3072 is its default, and a cheaper kind would not be representative.
        key = home / ".ssh" / "google_compute_engine"
        subprocess.run(["ssh-keygen", "-q", "-t", "rsa", "-b", "3072", "-N", "", "-f", key], check=True)
        own = {"HOME": str(home), "CLOUDSDK_CONFIG": str(home / "config")}
        env = self.sandbox.env | self.cloud.environment(zone=ZONE) | own
        return lambda: _timed(
            ["gcloud", "compute", "tpus", "tpu-vm", "ssh", f"{USER}@{self.node()}", "--worker=all", "--command=true"],
            env,
        )

    def openssh(self, job: str, workers: int, *, shared: bool = False) -> Callable[[], float]:
        """Return a measurement of one `ssh` process per worker, in parallel, with tpux's key and pinned host keys.

        Args:
            job: the job.
            workers: how many.
            shared: over connections that stay open (ControlMaster).
        """
        config = self._ssh_config(job)
        control = f"ControlPath={self.sandbox.directory}/%C"
        options = ["-o", "ControlMaster=auto", "-o", control, "-o", "ControlPersist=60"] if shared else []
        commands = [["ssh", "-F", config, *options, f"tpux-{int(job)}-{index}", "true"] for index in range(workers)]

        def in_parallel() -> float:
            began = time.monotonic()
            with ThreadPoolExecutor(workers) as pool:
                list(pool.map(lambda command: _timed(command, self.sandbox.env), commands))
            return time.monotonic() - began

        return in_parallel

    def fabric(self, job: str, workers: int) -> Callable[[], float]:
        """Return a measurement of a program with a fabric `ThreadingGroup`, which opens new connections."""
        hosts = [f"tpux-{int(job)}-{index}" for index in range(workers)]
        command = [sys.executable, "-c", FABRIC, str(self._ssh_config(job)), *hosts]
        return lambda: _timed(command, self.sandbox.env)

    def _ssh_config(self, job: str) -> Path:
        config = self.sandbox.directory / "ssh_config"
        config.write_text(self.sandbox.tpux("ssh-config", job))
        return config


def rows() -> list[Row]:
    """Measure the first output of 4 and of 64 workers, and `tpux exec` on 8 and 64 of a job that runs."""
    if reason := unavailable():
        return [Row("on emulated TPU VMs", f"not measured: {reason}")]
    with temporary_sandbox() as sandbox, Emulator(sandbox.directory / "emulator", clock_rate=1) as cloud:
        # Compile bytecode once, as an installation does, even if this Python may not write to its own directories.
        sandbox.env |= {"PYTHONPYCACHEPREFIX": str(sandbox.directory / "pycache"), "PYTHONDONTWRITEBYTECODE": ""}
        sandbox.env |= cloud.environment(zone=ZONE)
        emulated = EmulatedCloud(cloud, sandbox)
        try:
            return [
                *_first_output(emulated, "v4-32", 4, 2, ROUNDS),
                *_first_output(emulated, "v4-512", 64, 8, 1),
                _exec_on_many(emulated, "v4-512", 64),
                _exec(emulated),
            ]
        finally:
            sandbox.tpux("supervisor", "stop")  # before the emulator stops: it would request new nodes


def _first_output(emulated: EmulatedCloud, accelerator: str, workers: int, target: float, rounds: int) -> list[Row]:
    taken = [emulated.first_lines(accelerator, workers) for _ in range(rounds)]
    seconds, since_ready = (median(values) for values in zip(*taken, strict=True))
    note = f"{since_ready:.2g} s since the node became READY"
    return [at_most(f"READY until all {workers} workers have printed a line", seconds, target, unit=" s", note=note)]


def _exec(emulated: EmulatedCloud) -> Row:
    record = emulated.begin("v4-64")
    job = record.directory.name
    until(lambda: running(record), within=60, why="a running job")
    commands = {"tpux": lambda: _timed([str(TPUX), "exec", job, "--", "true"], emulated.sandbox.env)}
    commands["OpenSSH"] = emulated.openssh(job, 8)
    commands["fabric"] = emulated.fabric(job, 8)
    if gcloud := emulated.gcloud():
        commands["gcloud"] = gcloud
    times = dict(zip(commands, map(median, alternate(ROUNDS, *commands.values())), strict=True))
    note = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in times.items())
    note += "" if gcloud else "; gcloud is not installed, or port 22 is in use"
    more = times.pop("tpux") - min(times.values())
    return at_most(
        "`tpux exec` of `true` on 8 emulated workers: more than the fastest", more, 0.5, unit=" s", note=note
    )


def _exec_on_many(emulated: EmulatedCloud, accelerator: str, workers: int) -> Row:
    """Measure `tpux exec` over the connections of the supervisor, and OpenSSH with connections that stay open."""
    record = emulated.begin(accelerator)
    job = record.directory.name
    until(lambda: running(record), within=200, why="a running job")
    commands = {
        "tpux": lambda: _timed([str(TPUX), "exec", job, "--", "true"], emulated.sandbox.env),
        "OpenSSH": emulated.openssh(job, workers),
        "ControlMaster": emulated.openssh(job, workers, shared=True),
        "fabric": emulated.fabric(job, workers),
    }
    for command in (commands["tpux"], commands["ControlMaster"]):
        command()  # opens the connections
    times = dict(zip(commands, map(median, alternate(ROUNDS, *commands.values())), strict=True))
    note = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in times.items())
    ratio = times.pop("tpux") / min(times.values())
    title = f"`tpux exec` of `true` on {workers} emulated workers of a job that runs: ratio to the fastest"
    return at_most(title, ratio, 0.4, note=note)


def _timed(command: Sequence[str | Path], env: dict[str, str]) -> float:
    began = time.monotonic()
    done = subprocess.run(command, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{command[0]} exited with {done.returncode}: {done.stderr[-1000:]}")
    return time.monotonic() - began


def unavailable() -> str:
    """Return why workers with SSH servers cannot be emulated here, "" if they can."""
    if os.geteuid() != 0:
        return "workers with their own root file system need root"
    return "" if shutil.which("sshd") or Path("/usr/sbin/sshd").exists() else "sshd is not installed"
