"""Groups of jobs of which a limited number runs at once: `groups/NAME.json` in the directory of a user's supervisor.

The file is only a list of who came first. Whether a job counts is read from the job itself, so neither a crash nor a
job that was deleted leaves a place occupied.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tpux.errors import TpuxError
from tpux.store import locks
from tpux.store.files import JsonFile

if TYPE_CHECKING:
    from tpux.store import Store
    from tpux.store.state import State


@dataclass(frozen=True)
class _Members:
    running: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    priorities: dict[str, int] = field(default_factory=dict)


def enter(store: Store, name: str, limit: int, job: str, *, at_once: bool = False, priority: int = 0) -> int | None:
    """Let a pending job start if fewer than `limit` of its group have, and no other that waits comes before it.

    Args:
        store: the store of the jobs.
        name: the group.
        limit: how many may run.
        job: the job's id.
        at_once: it holds machines, so it starts however many have: later ones wait for it too.
        priority: those with a higher one come first, then those with a lower id.

    Returns:
        None if it may start: it then has its place until it ends. Otherwise how many may be before it.

    Raises:
        OSError: the group's file cannot be read or written.
        TpuxError: another process held the group's lock for long.
    """
    path = store.supervisor / "groups" / f"{name}.json"
    with locks.held(path.with_suffix(".lock"), what=f"the group {name}"):
        file = JsonFile(path, _Members)
        found = file.load() or _Members()
        running = [other for other in found.running if other == job or _counts(store, other, name)]
        priorities = {**found.priorities, job: priority}
        waiting = sorted({*found.waiting, job} - {*running}, key=lambda one: (-priorities.get(one, 0), int(one)))
        free = limit - len(running)
        if job not in running:
            ahead = waiting[: waiting.index(job)]
            still = list[str]()
            while ahead and len(still) < free:  # only those that would start first are read
                if _counts(store, other := ahead.pop(0), name, pending=True):
                    still.append(other)
                else:
                    waiting.remove(other)
            if at_once or len(still) < free:
                running.append(job)
                waiting.remove(job)
        kept = {one: priorities[one] for one in waiting if priorities.get(one)}
        file.save(_Members(tuple(running), tuple(waiting), kept))
        return None if job in running else waiting.index(job)


def leave(store: Store, name: str, job: str) -> None:
    """Give up the place of a job that waits for something else: the others go on.

    Args:
        store: the store of the jobs.
        name: the group.
        job: the job's id.

    Raises:
        OSError: the group's file cannot be read or written.
        TpuxError: another process held the group's lock for long.
    """
    path = store.supervisor / "groups" / f"{name}.json"
    file = JsonFile(path, _Members)
    if (found := file.load()) is None or job not in {*found.running, *found.waiting}:  # asked for at each look
        return
    with locks.held(path.with_suffix(".lock"), what=f"the group {name}"):
        found = file.load() or _Members()
        running, waiting = (tuple(one for one in each if one != job) for each in (found.running, found.waiting))
        file.save(_Members(running, waiting, found.priorities))


def _counts(store: Store, job: str, name: str, *, pending: bool = False) -> bool:
    """Return whether a job has not ended, or holds machines until their release, and is still in this group."""
    record = store.record(job)
    if not record.directory.is_dir():
        return False
    try:
        state: State = record.refresh()
    except TpuxError:  # it may run; it does not delay the others if it only waited
        return not pending
    group = record.stored_section("job").get("group")
    is_member = isinstance(group, dict) and group.get("name") == name
    uses = not state.ended or (state.requested and state.release_at is not None)
    return is_member and uses and (state.state == "pending" or not pending)
