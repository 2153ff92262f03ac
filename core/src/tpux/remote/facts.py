"""What a worker says about its memory, its disks and its mounts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tpux.console import format_size
from tpux.model.host import Host
from tpux.remote.script import Values, call_script

KIB = 1024
LOW_MEMORY = 5.0
"""Percent of a worker's memory that must be available."""
FULL_DISK = 95.0
"""Percent of use from which a disk is nearly full."""
NEAR_LIMIT = 4.0
"""How many times as much as these limits counts as little."""


@dataclass(frozen=True)
class Disk:
    """A file system.

    Attributes:
        device: what is mounted.
        at: where.
        size: in bytes.
        free: what a user without privileges can still write, in bytes.
    """

    device: str
    at: str
    size: int
    free: int

    @property
    def used_percent(self) -> float:
        """How much of it is used."""
        return 100.0 * (1 - self.free / self.size) if self.size else 0.0

    def describe(self) -> str:
        """Return how much of it is left, for people."""
        return f"disk {self.at}: {format_size(self.free)} of {format_size(self.size)} free"


@dataclass(frozen=True)
class Mount:
    """A mounted remote file system.

    Attributes:
        problem: why it cannot be used, "" if it answers.
    """

    device: str
    at: str
    type: str
    problem: str

    @property
    def is_fuse(self) -> bool:
        """True if a process of a user serves it, so that `fusermount` unmounts it."""
        return self.type.partition(".")[0] == "fuse"


@dataclass(frozen=True)
class Shortage:
    """What will end programs on a worker if nothing is done.

    Attributes:
        resource: `memory`, or `disk` with the path where it is mounted.
        message: how much is left.
    """

    resource: str
    message: str


@dataclass(frozen=True)
class WorkerFacts:
    """The state of a worker.

    Attributes:
        memory: all memory, in bytes; 0 if unknown.
        memory_available: what programs can still get, in bytes.
        disks: the file systems of the requested paths, each once.
        mounts: remote file systems, if requested.
    """

    memory: int = 0
    memory_available: int = 0
    disks: tuple[Disk, ...] = ()
    mounts: tuple[Mount, ...] = ()

    def describe_memory(self) -> str:
        """Return how much memory is left, for people."""
        return f"memory: {format_size(self.memory_available)} of {format_size(self.memory)} available"

    def shortages(self) -> list[Shortage]:
        """Return what is nearly used up."""
        found = [Shortage("memory", self.describe_memory())] if self._memory_percent() < LOW_MEMORY else []
        full = [disk for disk in self.disks if disk.used_percent >= FULL_DISK]
        return found + [Shortage(f"disk {disk.at}", disk.describe()) for disk in full]

    def near_limit(self) -> bool:
        """Return whether something may be used up soon."""
        used = max((disk.used_percent for disk in self.disks), default=0.0)
        return self._memory_percent() < NEAR_LIMIT * LOW_MEMORY or 100 - used < NEAR_LIMIT * (100 - FULL_DISK)

    def _memory_percent(self) -> float:
        return 100.0 * self.memory_available / self.memory if self.memory else 100.0


def read_facts(
    host: Host, paths: Iterable[str], *, local_paths: Iterable[str] = (), mounts: bool = False
) -> WorkerFacts:
    """Return the state of a worker; costs a few processes on it.

    Args:
        host: the worker.
        paths: whose file systems count; those that do not exist are left out.
        local_paths: absolute paths whose file systems count too, unless they are remote ones.
        mounts: check the remote file systems too.

    Raises:
        HostUnreachableError: the worker did not answer.
        TpuxError: the script failed.
    """
    asked, local = ("\n".join(path for path in given if "\n" not in path) for given in (paths, local_paths))
    values: Values = {"paths": asked, "local_paths": local, "mounts": int(mounts)}
    _, output = call_script(host, "facts", "-", values, wait=30.0)
    memory, disks, found = {}, dict[str, Disk](), list[Mount]()
    for line in output.decode(errors="replace").splitlines():
        match line.split("\t"):
            case ["memory", name, size] if size.isdecimal():
                memory[name] = int(size) * KIB
            case ["disk", device, size, free, at] if size.isdecimal() and free.isdecimal():
                disks[at] = Disk(device, at, int(size) * KIB, int(free) * KIB)
            case ["mount", device, at, type_, *problem]:
                found.append(Mount(device, at, type_, " ".join(problem)))
    return WorkerFacts(memory.get("MemTotal:", 0), memory.get("MemAvailable:", 0), (*disks.values(),), (*found,))
