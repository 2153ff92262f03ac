"""`tpux exec` of `true` on 8, 64 and 256 ssh servers, beside OpenSSH in parallel processes and fabric as it comes.

One sshd answers on all addresses, each with a home directory of its own, on the same machine as its clients.
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

from tpux import Allocation, Host, Worker, connect_job
from tpux.lifecycle.create import create_job
from tpux.remote.fanout import fanout
from tpux.store import Store
from tpux_ssh.keyfiles import own_key, public_line

SIZES = (8, 64, 256)
ROUNDS = 3
TPUX = Path(sys.executable).parent / "tpux"
# What the documentation of fabric shows for many hosts, with the key that is cheapest.
FABRIC = """
import sys
from fabric import ThreadingGroup
key, port, *hosts = sys.argv[1:]
group = ThreadingGroup(*hosts, user="root", port=int(port), connect_kwargs={"key_filename": key})
assert all(result.ok for result in group.run("true", hide=True).values())
"""


@dataclass(frozen=True)
class World:
    """The servers, and the key that they let in."""

    server: Server
    addresses: Sequence[str]
    key: Path
    known_hosts: Path

    def job(self, count: int) -> str:
        """A job that holds the first `count` servers."""
        config = self.server.directory / f"{count}.yaml"
        places = [f"{address}:{self.server.port}" for address in self.addresses[:count]]
        config.write_text(f"tpu: {{allocation_mode: hosts}}\nhosts: {places}\ncommand: {{cmd: 'true'}}\n")
        record = create_job(Store(), config, (), warn=print)
        workers = tuple(Worker(index, address=place) for index, place in enumerate(places))
        allocation = Allocation("bench", "ssh", workers, borrowed=True, costs=False)
        assert record.acquire()
        record.write("state-changed", time.time(), to="provisioning", why="")
        record.write("allocation-requested", time.time(), name="fanout", allocator="hosts")
        record.write("allocated", time.time(), allocation=allocation.to_json())
        record.lock.release()
        return record.directory.name

    def exec(self, job: str) -> float:
        """The command, as it is typed."""
        return _timed([TPUX, "exec", job, "--", "true"])

    def openssh(self, count: int) -> float:
        """A process a host, 64 at a time, which is what gcloud does."""
        with ThreadPoolExecutor(64) as pool:
            began = time.monotonic()
            list(pool.map(lambda address: subprocess.run(self._ssh(address), check=True), self.addresses[:count]))
            return time.monotonic() - began

    def fabric(self, count: int) -> float:
        """A program with fabric's own group of threads."""
        return _timed([sys.executable, "-c", FABRIC, str(self.key), str(self.server.port), *self.addresses[:count]])

    def _ssh(self, address: str) -> list[str]:
        options = {
            "IdentityFile": self.key,
            "IdentitiesOnly": "yes",
            "UserKnownHostsFile": self.known_hosts,
            "LogLevel": "ERROR",
        }
        given = [part for name, value in options.items() for part in ("-o", f"{name}={value}")]
        return ["ssh", "-F", "none", *given, "-p", str(self.server.port), f"root@{address}", "true"]


def rows() -> list[Row]:
    """Cold and warm, and the memory of 256 connections."""
    with world() as one:
        return [row for count in SIZES for row in _of(one, count)]


def _of(one: World, count: int) -> list[Row]:
    job = one.job(count)
    one.exec(job)  # pins the host keys
    rounds = [
        {"tpux": one.exec(job), "OpenSSH": one.openssh(count), "fabric": one.fabric(count)} for _ in range(ROUNDS)
    ]
    cold = {name: median(times[name] for times in rounds) for name in rounds[0]}
    told = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in cold.items())
    fastest = min(cold["OpenSSH"], cold["fabric"])
    title = f"`tpux exec` of `true` on {count} workers, cold"
    if count == SIZES[0]:
        result = [at_most(f"{title}: more than the fastest peer", cold["tpux"] - fastest, 0.5, unit=" s", note=told)]
    else:
        result = [at_most(f"{title}: ratio to the fastest peer", cold["tpux"] / fastest, 1.1, note=told)]
    if count == SIZES[-1]:
        result += _warm(one, job, cold["OpenSSH"])
    return result


def _warm(one: World, job: str, openssh: float) -> list[Row]:
    """On connections that are open, in this process."""
    del one
    held = connect_job(job)
    before = memory_of(os.getpid(), "VmRSS")
    hosts = fanout({w.index: w for w in held.allocation.workers}, lambda _, worker: held.open(worker))
    opened: Mapping[int, Host] = {index: host for index, host in hosts.items() if not isinstance(host, Exception)}
    times = []
    for _ in range(ROUNDS + 1):
        began = time.monotonic()
        answers = fanout(opened, lambda _, host: host.run("true").ok)
        times.append(time.monotonic() - began)
        assert list(answers.values()) == [True] * len(held.allocation.workers)
    memory = memory_of(os.getpid(), "VmRSS") - before
    fanout(opened, lambda _, host: host.close())
    seconds, count = median(times[1:]), len(opened)
    factor, note = openssh / seconds, f"{seconds:.2g} s, OpenSSH {openssh:.2g} s"
    return [
        Row(
            f"a warm fan-out to {count} workers: times faster than OpenSSH", f"{factor:.0f} ({note})", "5", factor >= 5
        ),
        at_most(f"memory of {count} open connections", memory, 80, unit=" MB"),
    ]


@contextmanager
def world() -> Iterator[World]:
    """A server with 256 addresses, and a store whose key it lets in."""
    kept = os.environ.get("TPUX_HOME")
    with tempfile.TemporaryDirectory(prefix="tpux-bench-", ignore_cleanup_errors=True) as name:
        directory = Path(name)
        os.environ["TPUX_HOME"] = str(directory / "home")
        addresses = [f"127.0.{100 + index // 250}.{1 + index % 250}" for index in range(max(SIZES))]
        homes = {address: directory / "homes" / address for address in addresses}
        for home in homes.values():
            home.mkdir(parents=True)
        server = Server(directory / "sshd", "0.0.0.0", free_port(), [public_line(own_key())], homes=homes)
        server.start()
        known = directory / "known_hosts"
        known.write_text("".join(f"[{address}]:{server.port} {server.host_key}\n" for address in addresses))
        try:
            yield World(server, addresses, own_key(), known)
        finally:
            server.stop()
            os.environ.pop("TPUX_HOME")
            if kept is not None:
                os.environ["TPUX_HOME"] = kept


def _timed(command: Sequence[str | Path]) -> float:
    began = time.monotonic()
    # As an installed program is: compiled once, wherever this Python may not write.
    env = {**os.environ, "PYTHONPYCACHEPREFIX": os.environ["TPUX_HOME"] + "/pycache", "PYTHONDONTWRITEBYTECODE": ""}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=env)
    if done.returncode:
        raise RuntimeError(f"{command[0]} exited with {done.returncode}: {done.stderr[-1000:]}")
    return time.monotonic() - began


if __name__ == "__main__":
    for row in rows():
        print(f"{row.figure}: {row.value} (target {row.target}: {row.met})")
