"""The machines that a job holds, for commands that act on its workers while it runs or while they are kept."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

from tpux import config
from tpux.errors import TpuxError, UsageError
from tpux.plugin import spec
from tpux.plugin.host import Host
from tpux.plugin.job import Job
from tpux.plugin.machines import Allocation, Worker
from tpux.plugin.manager import Plugins
from tpux.remote.fanout import fanout
from tpux.store import Store, files

if TYPE_CHECKING:
    from tpux.plugin.machines import JsonValue
    from tpux.store.record import Record

R = TypeVar("R")


@dataclass(frozen=True)
class JobConnection:
    """A job, and the machines that it holds."""

    job: Job
    allocation: Allocation
    plugins: Plugins

    def open(self, worker: Worker) -> Host:
        """Connect to a worker; the caller closes it.

        Raises:
            HostUnreachableError: it does not answer.
        """
        host = self.plugins.call_one(self.allocation.transport, spec.connect, worker=worker, job=self.job)
        if host is None:
            raise TpuxError(f"the transport {self.allocation.transport} gives no connections")
        return host

    def each(self, workers: Sequence[Worker], call: Callable[[Host], R]) -> dict[int, R | TpuxError]:
        """Call on the hosts of several workers at once; a worker's error is its answer.

        Args:
            workers: on which.
            call: takes an open host, which is closed afterwards.
        """

        def one(index: int, worker: Worker) -> R:
            del index
            host = self.open(worker)
            try:
                return call(host)
            finally:
                host.close()

        return fanout({worker.index: worker for worker in workers}, one)

    def worker(self, index: int) -> Worker:
        """One of the workers.

        Raises:
            UsageError: there is none of that number.
        """
        workers = self.allocation.workers
        if not 0 <= index < len(workers):
            hint = f"it has {len(workers)}, counted from 0"
            raise UsageError(f"job {self.job.id} has no worker {index}", hint=hint)
        return workers[index]


def connect_job(job: str) -> JobConnection:
    """The machines of one of the user's own jobs.

    Args:
        job: its id; leading zeros may be left out.

    Raises:
        UsageError: there is no such job, or it holds no machines now.
        TpuxError: a plugin that it needs is not there.
    """
    store = Store()
    record = store.find(job)
    state = record.refresh()
    if (allocation := state.machines) is None:
        hint = (
            "it gets them while it is provisioning" if not state.ended else f"tpux resume {state.id} asks for new ones"
        )
        raise UsageError(f"job {state.id} is {state.state} and holds no machines", hint=hint)
    plugins = Plugins()
    return JobConnection(_job(store, record, plugins), allocation, plugins)


def allocation_of(job: Job) -> Allocation | None:
    """The machines that a job holds now; None where it holds none, or is not on disk (a dry run's)."""
    if not (job.directory / "events.jsonl").exists():
        return None
    return Store().record(job.id, job.user).refresh().machines


def _job(store: Store, record: Record, plugins: Plugins) -> Job:
    state = record.state
    path = record.directory / "resolved.json"
    if (data := files.load(path)) is None:
        raise TpuxError("the job's config cannot be read", where=str(path))
    plan = config.from_resolved(data, plugins=plugins, secrets=_secrets(record.directory, data))
    return Job(
        id=state.id,
        user=state.user,
        store_id=store.id,
        directory=record.directory,
        sections=plan.sections,
        modules=plan.modules,
        environment=plan.environment,
        attempt=state.attempt,
        stage=state.stage,
    )


def _secrets(directory: Path, data: dict[str, JsonValue]) -> dict[str, str]:
    """The job's secrets; those of one that has ended are gone, where the environment does not have them again."""
    kept = files.load(directory / "secrets.json") or os.environ
    return {name: str(kept.get(name, "")) for name in cast("list[str]", data.get("secrets", []))}
