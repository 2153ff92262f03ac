"""`tpux exec` of `true` on 8, 64 and 256 SSH servers, compared with parallel OpenSSH processes and with fabric.

One sshd listens on all addresses, each with its own home directory, on the same machine as the clients.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.measure import Row, at_most, memory_of

sys.path.insert(0, str(Path(__file__).parent.parent / "plugins/ssh/tests/support"))

from ssh_servers import Server, free_port

from tpux import Allocation, Host, Worker, api
from tpux.lifecycle.create import create_job
from tpux.model.events import Allocated, AllocationRequested, StateChanged
from tpux.remote.fanout import fanout
from tpux.store import Store
from tpux_ssh.keyfiles import own_key, public_line

SIZES = (8, 64, 256)
ROUNDS = 7
"""The medians of three rounds differed by a tenth."""
SLOW_ROUNDS = 3
"""Of OpenSSH, which takes several times as long."""
TPUX = Path(sys.executable).parent / "tpux"
# As in fabric's documentation for many hosts, with an explicit key.
FABRIC = """
import sys
from fabric import ThreadingGroup
key, port, *hosts = sys.argv[1:]
group = ThreadingGroup(*hosts, user="root", port=int(port), connect_kwargs={"key_filename": key})
assert all(result.ok for result in group.run("true", hide=True).values())
"""


@dataclass(frozen=True)
class SshServers:
    """The servers, and the key that they accept."""

    server: Server
    addresses: Sequence[str]
    key: Path
    known_hosts: Path

    def job(self, count: int) -> str:
        """Create a job that holds the first `count` servers, and return its id."""
        config = self.server.directory / f"{count}.yaml"
        endpoints = [f"{address}:{self.server.port}" for address in self.addresses[:count]]
        config.write_text(f"tpu: {{allocation_mode: hosts}}\nhosts: {endpoints}\ncommand: {{cmd: 'true'}}\n")
        record = create_job(Store(), config, (), warn=print)
        workers = tuple(Worker(index, address=endpoint) for index, endpoint in enumerate(endpoints))
        allocation = Allocation("bench", "ssh", workers, borrowed=True, costs=False)
        assert record.acquire()
        record.write(StateChanged(to="provisioning"), time.time())
        record.write(AllocationRequested(name="fanout", allocator="hosts"), time.time())
        record.write(Allocated(allocation=allocation), time.time())
        record.lock.release()
        return record.directory.name

    def exec(self, job: str) -> float:
        """Return the seconds of `tpux exec`."""
        return _timed([TPUX, "exec", job, "--", "true"])

    def openssh(self, count: int) -> float:
        """Return the seconds of one `ssh` process per host, 64 at a time as gcloud does."""
        with ThreadPoolExecutor(64) as pool:
            began = time.monotonic()
            list(pool.map(lambda address: subprocess.run(self.ssh(address), check=True), self.addresses[:count]))
            return time.monotonic() - began

    def fabric(self, count: int) -> float:
        """Return the seconds of a program with a fabric `ThreadingGroup`."""
        return _timed([sys.executable, "-c", FABRIC, str(self.key), str(self.server.port), *self.addresses[:count]])

    def ssh(self, address: str, command: str = "true") -> list[str | Path]:
        """Return the command line that runs a command on a host with OpenSSH, without the user's own settings."""
        options = {
            "IdentityFile": self.key,
            "IdentitiesOnly": "yes",
            "UserKnownHostsFile": self.known_hosts,
            "LogLevel": "ERROR",
        }
        given = [part for name, value in options.items() for part in ("-o", f"{name}={value}")]
        return ["ssh", "-F", "none", *given, "-p", str(self.server.port), f"root@{address}", command]


def rows() -> list[Row]:
    """Measure new and open connections, and the memory of 256 open connections."""
    with run_servers() as servers:
        return [row for count in SIZES for row in _rows_for(servers, count)]


def _rows_for(servers: SshServers, count: int) -> list[Row]:
    job = servers.job(count)
    servers.exec(job)  # pins the host keys
    times: dict[str, list[float]] = {"tpux": [], "OpenSSH": [], "fabric": []}
    for number in range(ROUNDS):
        times["tpux"].append(servers.exec(job))
        if number < SLOW_ROUNDS:
            times["OpenSSH"].append(servers.openssh(count))
        times["fabric"].append(servers.fabric(count))
    cold = {name: median(seconds) for name, seconds in times.items()}
    note = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in cold.items())
    fastest = min(cold["OpenSSH"], cold["fabric"])
    title = f"`tpux exec` of `true` on {count} workers, new connections"
    if count == SIZES[0]:
        result = [
            at_most(
                f"{title}: seconds more than the fastest other tool", cold["tpux"] - fastest, 0.5, unit=" s", note=note
            )
        ]
    else:
        result = [at_most(f"{title}: ratio to the fastest other tool", cold["tpux"] / fastest, 1.1, note=note)]
    if count == SIZES[-1]:
        result += _warm(job, cold["OpenSSH"])
    return result


def _warm(job: str, openssh: float) -> list[Row]:
    """Measure the fan-out over open connections, in this process."""
    connection = api.workers(job)
    before = memory_of(os.getpid(), "VmRSS")
    hosts = fanout({w.index: w for w in connection.allocation.workers}, lambda _, worker: connection.open(worker))
    opened: Mapping[int, Host] = {index: host for index, host in hosts.items() if not isinstance(host, Exception)}
    times = []
    for _ in range(SLOW_ROUNDS + 1):
        began = time.monotonic()
        answers = fanout(opened, lambda _, host: host.run("true").ok)
        times.append(time.monotonic() - began)
        assert list(answers.values()) == [True] * len(connection.allocation.workers)
    memory = memory_of(os.getpid(), "VmRSS") - before
    fanout(opened, lambda _, host: host.close())
    seconds, count = median(times[1:]), len(opened)
    factor, note = openssh / seconds, f"{seconds:.2g} s, OpenSSH {openssh:.2g} s"
    return [
        Row(
            f"fan-out over {count} open connections: times faster than OpenSSH",
            f"{factor:.0f} ({note})",
            "at least 5",
            factor >= 5,
        ),
        at_most(f"memory of {count} open connections", memory, 80, unit=" MB"),
    ]


@contextmanager
def run_servers() -> Iterator[SshServers]:
    """Yield a server with 256 addresses that accepts the key of a temporary store."""
    previous = os.environ.get("TPUX_HOME")
    with tempfile.TemporaryDirectory(prefix="tpux-bench-", ignore_cleanup_errors=True) as name:
        directory = Path(name)
        os.environ["TPUX_HOME"] = str(directory / "home")
        addresses = [f"127.0.{100 + index // 250}.{1 + index % 250}" for index in range(max(SIZES))]
        homes = {address: directory / "homes" / address for address in addresses}
        for home in homes.values():
            home.mkdir(parents=True)
        server = Server(directory / "sshd", "0.0.0.0", free_port(), [public_line(own_key())], homes=homes)
        server.start()
        known_hosts = directory / "known_hosts"
        known_hosts.write_text("".join(f"[{address}]:{server.port} {server.host_key}\n" for address in addresses))
        try:
            yield SshServers(server, addresses, own_key(), known_hosts)
        finally:
            server.stop()
            os.environ.pop("TPUX_HOME")
            if previous is not None:
                os.environ["TPUX_HOME"] = previous


def _timed(command: Sequence[str | Path]) -> float:
    began = time.monotonic()
    # Compile bytecode once, as an installation does, even if this Python may not write to its own directories.
    env = {**os.environ, "PYTHONPYCACHEPREFIX": os.environ["TPUX_HOME"] + "/pycache", "PYTHONDONTWRITEBYTECODE": ""}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=env)
    if done.returncode:
        raise RuntimeError(f"{command[0]} exited with {done.returncode}: {done.stderr[-1000:]}")
    return time.monotonic() - began


if __name__ == "__main__":
    for row in rows():
        print(f"{row.figure}: {row.value} (target {row.target}: {row.met})")
