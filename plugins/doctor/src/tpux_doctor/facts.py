"""What a worker says about its memory, its disks and its mounts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from importlib.resources import files
from typing import Literal

from tpux import Finding, Sh, sh
from tpux.api.text import format_size

SCRIPT = (files("tpux_doctor") / "facts.sh").read_text()
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

    def resources(self) -> list[Finding]:
        """Return how much is left of each resource: a warning if it is nearly used up, a note if that may be soon."""
        available = 100.0 * self.memory_available / self.memory if self.memory else 100.0
        found = [Finding(_level(available, LOW_MEMORY), self.describe_memory(), where="memory")]
        for disk in self.disks:
            level = _level(100 - disk.used_percent, 100 - FULL_DISK)
            found.append(Finding(level, disk.describe(), where=f"disk {disk.at}"))
        return found


def _level(left: float, limit: float) -> Literal["ok", "note", "warning"]:
    """Return the level of a finding about a resource of which so much is left, in percent."""
    return "warning" if left <= limit else "note" if left < NEAR_LIMIT * limit else "ok"


def facts_step(paths: Iterable[str], *, local_paths: Iterable[str] = (), mounts: bool = False) -> Sh:
    """Return the step that reads the state of a worker; it costs a few processes there. `parse_facts` reads its output.

    Args:
        paths: whose file systems count; those that do not exist are left out.
        local_paths: absolute paths whose file systems count too, unless they are remote ones.
        mounts: check the remote file systems too.
    """
    asked, local = ("\n".join(path for path in given if "\n" not in path) for given in (paths, local_paths))
    return sh(SCRIPT, paths=asked, local_paths=local, mounts=str(int(mounts)), timeout=90.0)


def parse_facts(output: bytes) -> WorkerFacts:
    """Return the state of a worker as the step has printed it."""
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
