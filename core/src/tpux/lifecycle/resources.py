"""Watch the memory and the disks of the workers while the command runs, and warn before they end it."""

from __future__ import annotations

import logging
import math
import os
import random
from pathlib import Path

from tpux.errors import TpuxError
from tpux.lifecycle.turn import Turn
from tpux.model.events import Warned
from tpux.model.host import Host
from tpux.model.machines import Worker
from tpux.remote.calls import WorkerCalls
from tpux.remote.facts import Shortage, WorkerFacts, read_facts
from tpux.store.files import mount_points

_log = logging.getLogger(__name__)
CHECK_EVERY = 180.0
"""Seconds between two checks of a machine."""
CHECK_SOON = 45.0
"""Seconds between two checks of one that has little left."""
PATHS = (".", "/tmp")  # noqa: S108  (examined, not written to)
"""Whose file systems are watched: local ones, as a rule. One that hangs would delay the worker's output. That of the
output directory is watched too, if it is local."""


class ResourceMonitor:
    """Reads the state of each machine from time to time. Several workers of one address are one machine.

    Args:
        turn: the step of a job whose command runs.

    Attributes:
        next_at: when `update` has something to do, by the monotonic clock.
        problem: what is short, on which worker, and on how many others; "" if nothing is.
    """

    def __init__(self, turn: Turn) -> None:
        self._calls: WorkerCalls[WorkerFacts] = turn.workers.calls("the check of its memory and disks")
        machines: dict[str | int, Worker] = {}
        for index in turn.state.run.workers:
            worker = turn.machines.workers[index]
            machines.setdefault(worker.address or index, worker)
        now = turn.clock.monotonic()
        # Spread, so that the checks of 64 workers do not coincide.
        self._due = {worker.index: now + random.uniform(0, CHECK_SOON) for worker in machines.values()}  # noqa: S311
        self.next_at = min(self._due.values())
        self.problem = ""
        self._asked: set[int] = set()
        self._short: dict[int, list[Shortage]] = {}
        self._reported: set[str] | None = None
        output = turn.state.run.output_dir
        self._output = (output,) if output.startswith("/") else ()

    def update(self, turn: Turn) -> None:
        """Start the checks that are due, and take the answers of earlier ones; never waits. Write what is new."""
        now = turn.clock.monotonic()
        unreachable = turn.workers.unreachable
        due = {
            index: turn.machines.workers[index]
            for index, at in self._due.items()
            if at <= now and index not in unreachable
        }
        if not due and not self._asked:
            return

        def read(_: int, worker: Worker) -> WorkerFacts:
            return _read_once(turn.workers.host(worker), self._output, now)

        answers = self._calls.make(due, read, 0.0)
        self._asked = (self._asked | due.keys()) - answers.keys()
        for index, answer in answers.items():
            if isinstance(answer, TpuxError):  # what matters is that the program is polled, and that reports it
                _log.debug("job %s: worker %s: %s", turn.state.id, index, answer)
                self._due[index] = now + CHECK_EVERY
                continue
            self._short[index] = answer.shortages()
            self._due[index] = now + (CHECK_SOON if answer.near_limit() else CHECK_EVERY)
        self.next_at = 0.0 if self._asked else min(self._due.values())
        self.problem = self._describe()
        self._report(turn)

    def _describe(self) -> str:
        short = {index: found[0] for index, found in sorted(self._short.items()) if found}
        if not short:
            return ""
        (index, first), *others = short.items()
        return f"worker {index}: {first.message}" + (f" ({len(others)} more workers)" if others else "")

    def _report(self, turn: Turn) -> None:
        """Write an event for each resource, the first time that it is short in this attempt."""
        by_resource: dict[str, dict[int, Shortage]] = {}
        for index, found in sorted(self._short.items()):
            for shortage in found:
                by_resource.setdefault(shortage.resource, {})[index] = shortage
        if not by_resource:
            return
        if self._reported is None:  # perhaps a former supervisor has reported some
            self._reported = _reported_resources(turn)
        for resource, workers in by_resource.items():
            if resource not in self._reported:
                self._reported.add(resource)
                message = next(iter(workers.values())).message
                turn.write(Warned(kind=resource, workers=tuple(workers), text=message))


_of_this_machine: dict[frozenset[int | Path], tuple[float, WorkerFacts]] = {}
"""The last answers for workers that are this machine, and when they were read, by the file systems they are about."""


def _read_once(host: Host, output: tuple[str, ...], now: float) -> WorkerFacts:
    """Return the state of a worker. For all jobs on this machine it is read once, since it costs several processes."""
    home: Path | None = getattr(host, "local_home", None)
    if home is None:
        return read_facts(host, PATHS, local_paths=output)
    try:
        systems = {_file_system(Path(path), home) for path in output}
        key = frozenset(systems | {path.stat().st_dev for path in (home / each for each in PATHS) if path.exists()})
    except OSError:  # such as a dead mount
        return read_facts(host, PATHS, local_paths=output)
    read_at, facts = _of_this_machine.get(key, (-math.inf, WorkerFacts()))
    if not read_at <= now < read_at + CHECK_SOON:
        facts = read_facts(host, PATHS, local_paths=output)
        _of_this_machine[key] = now, facts
    return facts


def _file_system(path: Path, home: Path) -> int | Path:
    """Return what tells the file system of a path from others; it is not asked itself, since it may hang.

    Args:
        path: an absolute path.
        home: a directory that can be looked at.

    Returns:
        Its device if it is the same as that of the last directory above both; else where it is mounted, or the path if
        a link leads to it.
    """
    points, common = mount_points(), Path(os.path.commonpath([path, home]))
    below = [each for each in (path, *path.parents) if each != common and each.is_relative_to(common)]
    for each in reversed(below):
        if each in points:
            return each
        if each.is_symlink():
            return path
    return common.stat().st_dev


def _reported_resources(turn: Turn) -> set[str]:
    attempt, events = turn.state.attempt, turn.record.events()
    return {event.kind for event, _ in events if isinstance(event, Warned) and event.attempt == attempt}
