"""Read the jobs for the monitor."""

from __future__ import annotations

from tpux import api
from tpux_monitor.output import files, last_line
from tpux_monitor.rows import Job


def read(*, users: bool = False) -> list[Job]:
    """Return the jobs that can be read, each that runs with the last line of its first worker's output.

    Args:
        users: those of all users of the store.
    """
    found = []
    for info in api.jobs(all_users=users, warn=lambda _: None):
        outputs = files(info.id) if info.state == "running" else {}
        found.append(Job(info, last_line(next(iter(outputs.values()))) if outputs else ""))
    return found
