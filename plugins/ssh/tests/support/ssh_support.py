"""What the tests say of jobs and workers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ssh_servers import Server

from tpux import Job, Section, Worker
from tpux.sections import CORE_SECTIONS, CommandSection

MakeServer = Callable[..., Server]


def worker_at(server: Server, index: int = 0, address: str = "", **details: str) -> Worker:
    """A worker behind a server."""
    return Worker(index, address=f"{address or server.address}:{server.port}", details=details)


def make_job(directory: Path, **sections: Section) -> Job:
    """A job with these sections beside core's own."""
    core = {word: model() for word, model in CORE_SECTIONS.items() if word != "command"}
    directory.mkdir(parents=True, exist_ok=True)
    return Job("000001", "me", "store", directory, {**core, "command": CommandSection(cmd="true"), **sections})
