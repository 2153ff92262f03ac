"""What `tpux plugins check slurm` and the tests use: a Slurm cluster of four nodes on this machine."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, cast

from tpux import TpuxError, Worker
from tpux_slurm.scripts import CHECK, PATH, batch_script, step
from tpux_slurm.section import SlurmTpuSection

if TYPE_CHECKING:
    from tpux_testing import LocalFixture

NODES = 4
_PATH = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
_START = 30.0
"""Seconds until the nodes are idle."""
_CONF = """ClusterName=tpuxtest
SlurmctldHost=localhost
SlurmUser=root
SlurmdUser=root
AuthInfo=socket={d}/munge.sock,cred_expire=10
SlurmctldPort={port}
SlurmctldPidFile={d}/slurmctld.pid
SlurmdPidFile={d}/slurmd-%n.pid
SlurmdSpoolDir={d}/spool-%n
StateSaveLocation={d}/state
SlurmctldLogFile={d}/slurmctld.log
SlurmdLogFile={d}/slurmd-%n.log
ProctrackType={proctrack}
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerNode=100
SchedulerParameters=batch_sched_delay=0,bf_interval=1,sched_interval=1,sched_min_interval=0
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
KillWait=1
MinJobAge=60
FirstJobId={job}
SlurmdTimeout=5
MessageTimeout=5
SlurmdParameters=config_overrides
GresTypes=tpu
NodeName=tpu[0-{last}] NodeHostname=localhost NodeAddr=127.0.0.1 Port={first}-{until} CPUs=4 RealMemory=1000 Gres=tpu:4
PartitionName=low Nodes=ALL Default=YES PriorityTier=1 PreemptMode=REQUEUE GraceTime=8
PartitionName=high Nodes=ALL PriorityTier=10 PreemptMode=OFF
"""


class Cluster:
    """slurmctld, munged and four slurmd, in a directory. Needs root and the package slurm-wlm.

    Args:
        directory: where its files are.

    Attributes:
        environment: the variables that Slurm's commands need.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.environment = {**os.environ, "PATH": _PATH, "SLURM_CONF": str(directory / "slurm.conf")}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Cluster:
        if reason := why_not():
            raise TpuxError(f"no Slurm cluster: {reason}")
        directory = self.directory
        directory.chmod(0o755)
        (directory / "state").mkdir()
        (directory / "tmp").mkdir(mode=0o1777)
        key = directory / "munge.key"
        key.write_bytes(secrets.token_bytes(1024))
        key.chmod(0o400)
        ports = _free_ports(NODES + 1)
        groups = _can_track_by_cgroup(directory)
        (directory / "slurm.conf").write_text(
            _CONF.format(
                d=directory,
                port=ports[0],
                job=os.getpid() % 60000 * 1000 + 1,  # clusters on one machine share the cgroups, named by node and job
                first=ports[1],
                until=ports[-1],
                last=NODES - 1,
                proctrack="proctrack/cgroup" if groups else "proctrack/linuxproc",
            )
        )
        (directory / "gres.conf").write_text(f"NodeName=tpu[0-{NODES - 1}] Name=tpu Count=4\n")
        (directory / "cgroup.conf").write_text(
            f"CgroupPlugin=cgroup/v1\nCgroupAutomount=yes\nCgroupMountpoint={directory}/cg\n"
        )
        try:
            names = (
                ("key-file", "munge.key"),
                ("pid-file", "munge.pid"),
                ("log-file", "munge.log"),
                ("seed-file", "seed"),
            )
            files = [f"--{option}={directory / name}" for option, name in names]
            self._start("munged", ["munged", "--foreground", "--force", f"--socket={directory}/munge.sock", *files])
            self.start_controller()
            for number in range(NODES):
                self.start_node(number)
            self.wait_until_idle()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(TpuxError, subprocess.TimeoutExpired):
            self.cancel()
        for name in reversed(list(self._processes)):
            self.kill(name)
        for path in (self.directory / "cg/freezer", self.directory / "cg"):
            subprocess.run(["umount", "-l", path], check=False, capture_output=True)

    def start_controller(self) -> None:
        """Start slurmctld."""
        self._start("slurmctld", ["slurmctld", "-D", "-f", self.environment["SLURM_CONF"]])

    def start_node(self, number: int) -> None:
        """Start the slurmd of a node."""
        name = f"tpu{number}"
        (self.directory / f"spool-{name}").mkdir(exist_ok=True)
        self._start(name, ["slurmd", "-D", "-N", name, "-f", self.environment["SLURM_CONF"]])

    def kill(self, name: str) -> None:
        """Kill a daemon: munged, tpu0 to tpu3. slurmctld is terminated: it stores new jobs only every 5 s."""
        process = self._processes.pop(name)
        if name == "slurmctld":
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(10)
        process.kill()
        process.wait()

    def run(self, *argv: str) -> str:
        """Return what a command of Slurm prints.

        Raises:
            TpuxError: it has failed.
        """
        done = subprocess.run(argv, env=self.environment, capture_output=True, text=True, timeout=30, check=False)
        if done.returncode:
            raise TpuxError(f"{' '.join(argv)}: {done.stderr.strip()}")
        return done.stdout.strip()

    def jobs(self) -> list[str]:
        """Return the ids of the jobs that hold nodes, or wait for them."""
        return self.run("squeue", "-h", "-o", "%i").split()

    def cancel(self) -> None:
        """End all jobs. Their keepers end at once, and after SIGTERM, which asks them to stay, only once it is over."""
        for more, patience in ((["--signal=USR2"], 2), ([], 20)):
            if not self.jobs():
                return
            with suppress(TpuxError):  # not all of them run
                self.run("scancel", "--me", *more)
            with suppress(TpuxError):
                self._until(lambda: not self.jobs(), "jobs have ended", patience)

    def wait_until_idle(self) -> None:
        """Wait until all nodes answer and none is in use."""
        self._until(
            lambda: self.run("sinfo", "-h", "-N", "-p", "low", "-o", "%T").split() == ["idle"] * NODES,
            "nodes are idle",
            _START,
        )

    def _until(self, holds: object, what: str, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while True:
            with suppress(TpuxError):
                if callable(holds) and holds():
                    return
            if time.monotonic() > deadline:
                raise TpuxError(f"Slurm: not within {timeout:.0f} s: {what}; see the logs in {self.directory}")
            time.sleep(0.2)

    def _start(self, name: str, argv: list[str]) -> None:
        with (self.directory / f"{name}.out").open("ab") as output:
            self._processes[name] = subprocess.Popen(
                argv,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )


def why_not() -> str:
    """Return why there can be no cluster here, "" if there can."""
    missing = [name for name in ("slurmctld", "slurmd", "munged", "sbatch") if not shutil.which(name, path=_PATH)]
    if missing:
        return f"{', '.join(missing)} not found (apt-get install slurm-wlm munge)"
    return "" if os.geteuid() == 0 else "it needs root"


def _free_ports(count: int) -> list[int]:
    """Return so many ports in a row that nobody listens on."""
    start = 21000 + os.getpid() % 700 * 10
    for first in range(start, start + 4000, 10):
        ports = list(range(first, first + count))
        with ExitStack() as stack, suppress(OSError):
            for port in ports:
                stack.enter_context(socket.create_server(("127.0.0.1", port)))
            return ports
    raise TpuxError("no free ports")


def _can_track_by_cgroup(directory: Path) -> bool:
    """Mount the freezer of cgroup v1, if this machine has it."""
    (directory / "cg").mkdir()
    commands: list[list[str | Path]] = [
        ["mount", "-t", "tmpfs", "none", directory / "cg"],
        ["mkdir", directory / "cg/freezer"],
        ["mount", "-t", "cgroup", "-o", "freezer", "none", directory / "cg/freezer"],
    ]
    return all(not subprocess.run(command, check=False, capture_output=True).returncode for command in commands)


@contextmanager
def cluster(config: Mapping[str, object]) -> Iterator[LocalFixture]:
    """Start a cluster, and use it for the config; the worker of the transport's contract is a node of a job there.

    Raises:
        TpuxError: this machine has no slurm-wlm, or the user is not root.
    """
    from tpux_testing import LocalFixture

    with (
        tempfile.TemporaryDirectory(prefix="tpux-slurm-", ignore_cleanup_errors=True) as made,
        Cluster(Path(made)) as slurm,
    ):
        before = {name: os.environ.get(name) for name in ("SLURM_CONF", "PATH")}
        os.environ.update({name: slurm.environment[name] for name in before})
        given = cast("Mapping[str, object]", config.get("tpu") or {})
        tpu = {"nodes": 2, "node_directory": str(Path(made) / "tmp"), **given, "allocation_mode": "slurm"}
        try:
            one = node_of(slurm)
            held = len(slurm.jobs())
            missing = Worker(0, address="tpu9", details={**one.details})
            yield LocalFixture(
                {**config, "tpu": tpu}, existing=lambda: slurm.jobs()[held:], worker=one, unreachable=missing
            )
        finally:
            for name, value in before.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})


def node_of(slurm: Cluster) -> Worker:
    """Submit a job of one node as the allocator does, and return the node."""
    base = str(slurm.directory / "tmp")
    script = batch_script(SlurmTpuSection.model_validate({"node_directory": base}), slurm.environment, "/root")
    argv = ["sbatch", "--parsable", "-N1", "--exclusive", "--mem=0", "--export=NIL", "--chdir=/", "--output=/dev/null"]
    done = subprocess.run(argv, input=script, env=slurm.environment, capture_output=True, text=True, check=True)
    job, deadline = done.stdout.strip(), time.monotonic() + _START
    while time.monotonic() < deadline:
        with suppress(TpuxError):
            line = slurm.run(*step(job, 1), "/bin/sh", "-c", CHECK, "check", PATH, base)
            name, status, directory = line.split("|", 2)
            if status == "ready":
                return Worker(0, address=name, details={"job": job, "directory": directory})
        time.sleep(0.3)
    raise TpuxError(f"no keeper of job {job} within {_START:.0f} s")
