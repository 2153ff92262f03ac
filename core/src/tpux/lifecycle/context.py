"""A job in the supervisor's hands: what is on disk, what it is connected to, and how it is written down."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Protocol, TypeVar, cast

from tpux import config
from tpux.clock import Clock
from tpux.errors import HostUnreachableError, TpuxError
from tpux.lifecycle.policy import HEALTHY_AFTER
from tpux.plugin import spec
from tpux.plugin.events import JobState
from tpux.plugin.failures import Failure
from tpux.plugin.host import Host
from tpux.plugin.job import Job
from tpux.plugin.machines import Allocation, JsonValue, ProvisionRequest, Worker
from tpux.plugin.manager import Plugins
from tpux.store import Store, files
from tpux.store.record import Record
from tpux.store.state import State

M = TypeVar("M")
T = TypeVar("T", covariant=True)
_log = logging.getLogger(__name__)


class AllocatorHook(Protocol[T]):
    """One of the three hooks that an allocator answers."""

    __name__: str

    def __call__(self, request: ProvisionRequest) -> T:
        """Its specification."""


@dataclass(frozen=True)
class Unreachable:
    """A worker that does not answer, since when (seconds since the epoch), and what came instead."""

    since: float
    error: str


class JobContext:
    """One job whose lock is held here. What it keeps in memory can be made again from the disk and the workers.

    Args:
        store: where the job is.
        record: the job on disk, its lock held.
        plugins: whom to ask.
        clock: what time it is.
    """

    def __init__(self, store: Store, record: Record, plugins: Plugins, clock: Clock) -> None:
        self.store = store
        self.record = record
        self.plugins = plugins
        self.clock = clock
        self._hosts: dict[int, Host] = {}
        self.out_of_reach: dict[int, Unreachable] = {}
        self._memory: dict[type, object] = {}
        self.unknown_since: float | None = None
        self.problems = 0

    @cached_property
    def plan(self) -> config.Resolved:
        """The config, validated when the job was created.

        Raises:
            TpuxError: it is not there, or a plugin that it needs no longer is.
        """
        data = files.load(self.record.directory / "resolved.json")
        if data is None:
            raise TpuxError("the job's config cannot be read", where=str(self.record.directory / "resolved.json"))
        return config.from_resolved(data, plugins=self.plugins, secrets=self.secrets)

    @cached_property
    def secrets(self) -> dict[str, str]:
        """The secrets that the config names; blanks once the job has ended and they are gone: none is needed then."""
        data = files.load(self.record.directory / "secrets.json")
        if data is None and self.state.ended:
            resolved = files.load(self.record.directory / "resolved.json") or {}
            return dict.fromkeys(cast("list[str]", resolved.get("secrets", [])), "")
        return {name: str(value) for name, value in (data or {}).items()}

    @property
    def state(self) -> State:
        """The job now."""
        return self.record.state

    @property
    def job(self) -> Job:
        """The job as plugins see it."""
        if (self._job.attempt, self._job.stage) != (self.state.attempt, self.state.stage):
            self._job = replace(self._job, attempt=self.state.attempt, stage=self.state.stage)
        return self._job

    @cached_property
    def _job(self) -> Job:
        return Job(
            id=self.state.id,
            user=self.state.user,
            store_id=self.store.id,
            directory=self.record.directory,
            sections=self.plan.sections,
            modules=self.plan.modules,
            environment=self.plan.environment,
        )

    # --- what is in memory alone ----------------------------------------------------------------

    def recall(self, kind: type[M], make: Callable[[], M]) -> M:
        """What a handler keeps from one step to the next, one of each kind; made where it is not there."""
        if (kept := self.recalled(kind)) is None:
            kept = self._memory[kind] = make()
        return kept

    def recalled(self, kind: type[M]) -> M | None:
        """What is kept of that kind, if anything."""
        kept = self._memory.get(kind)
        return kept if isinstance(kept, kind) else None

    def unlearn(self, *kinds: type) -> None:
        """Keep nothing of these kinds any more; nothing at all where none is named."""
        for kind in kinds or tuple(self._memory):
            self._memory.pop(kind, None)

    # --- writing down -------------------------------------------------------------------------

    def write(self, kind: str, /, **facts: JsonValue) -> None:
        """Write down what happened or is about to, and let the listeners hear it."""
        event = self.record.write(kind, self.clock.now(), **facts)
        self.plugins.call_all(spec.on_event, job=self.job, event=event)

    def attempt_ended(self, failure: Failure | None, *, stopped: bool = False) -> None:
        """Write that the current attempt is over."""
        lasted = self.clock.now() - cast("float", self.state.run["started_at"])
        self.write(
            "attempt-ended",
            attempt=self.state.attempt,
            failure=cast("dict[str, JsonValue]", failure.to_json()) if failure else None,
            stopped=stopped,
            restarts_reset=lasted >= HEALTHY_AFTER,
        )

    def move(self, to: JobState, why: str = "", **facts: JsonValue) -> None:
        """Go on to another state."""
        self.write("state-changed", to=to, why=why, **facts)

    def waiting(self, why: str, saved_state: dict[str, JsonValue] | None = None) -> None:
        """Say what is waited for, where that is news."""
        if why != self.state.why or (saved_state is not None and saved_state != self.state.saved_state):
            self.write("waiting", why=why, saved_state=saved_state)
            self.log("tpu.log", why)

    def failed(self, failure: Failure) -> None:
        """Write down a failure that no attempt had."""
        self.write("failed", failure=cast("dict[str, JsonValue]", failure.to_json()))

    def log(self, name: str, line: str) -> None:
        """Add a line to one of the job's own logs."""
        from datetime import datetime, timezone

        at = datetime.fromtimestamp(self.clock.now(), timezone.utc).strftime("%Y-%m-%d %H:%M:%S")
        path = self.record.logs / name
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        files.append_output(path, f"{at} {line}\n".encode())

    # --- machines -----------------------------------------------------------------------------

    def request(self) -> ProvisionRequest:
        """What the job asks of its allocator; the same at every step of one request."""
        tpu = self.job.tpu
        name = tpu.name or f"{re.sub('[^a-z0-9]+', '-', self.job.name.lower()).strip('-') or 'job'}-{self.job.id}"
        asking = self.state.state == "provisioning"
        answers = self.plugins.call_all(spec.public_keys, job=self.job) if asking else []
        directory = self.record.directory / "machines"
        directory.mkdir(exist_ok=True, mode=0o700)
        labels = {"tpux-store": self.store.id, "tpux-user": self.job.user, "tpux-job": self.job.id}
        return ProvisionRequest(
            name=name,
            tpu=tpu,
            section=self.job.sections.get(self.plan.allocator),
            labels=labels,
            public_keys=tuple(key for _, keys in answers for key in keys),
            directory=directory,
            saved_state=self.state.saved_state,
            attempt=self.state.attempt,
        )

    def call_allocator(self, hook: AllocatorHook[T]) -> T:
        """What the job's allocator answers.

        Raises:
            TpuxError: it raised it, or has no such hook.
        """
        word = self.plan.allocator
        answer = self.plugins.call_one(word, hook, request=self.request())
        if answer is None:
            raise TpuxError(f"the allocator {word} does not answer {hook.__name__}", where=f"plugin {word}")
        return answer

    @property
    def allocation(self) -> Allocation:
        """The machines that it holds.

        Raises:
            TpuxError: it holds none.
        """
        if (allocation := self.state.machines) is None:
            raise TpuxError("the job holds no machines", where=f"job {self.state.id}")
        return allocation

    def chosen(self) -> list[Worker]:
        """The workers that run the command.

        Raises:
            TpuxError: the config chooses one that the machines do not have.
        """
        workers = self.allocation.workers
        wanted = self.job.command.workers
        numbers = list(range(len(workers))) if wanted == "all" else [wanted] if isinstance(wanted, int) else wanted
        if missing := [number for number in numbers if number >= len(workers)]:
            raise TpuxError(f"there is no worker {missing[0]}: the machines have {len(workers)}")
        return [workers[number] for number in numbers]

    def host(self, worker: Worker) -> Host:
        """The connection to a worker, opened when it is first needed.

        Raises:
            HostUnreachableError: it does not answer.
        """
        if (host := self._hosts.get(worker.index)) is None:
            answer = self.plugins.call_one(self.allocation.transport, spec.connect, worker=worker, job=self.job)
            if answer is None:
                raise HostUnreachableError(f"plugin {self.allocation.transport!r} gives no connections")
            host = self._hosts[worker.index] = answer
        return host

    def reached(self, worker: Worker) -> None:
        """Note that a worker answered."""
        self.out_of_reach.pop(worker.index, None)

    def missed(self, worker: Worker, error: HostUnreachableError) -> float:
        """Note that a worker did not answer, and drop the connection; seconds since it last did."""
        self.drop(worker)
        now = self.clock.now()
        before = self.out_of_reach.get(worker.index)
        since = before.since if before else now
        self.out_of_reach[worker.index] = Unreachable(since, str(error))
        return now - since

    def drop(self, worker: Worker) -> None:
        """Close the connection to a worker."""
        if host := self._hosts.pop(worker.index, None):
            try:
                host.close()
            except (OSError, TpuxError):
                _log.debug("closing the connection to worker %d", worker.index, exc_info=True)

    def read_again(self) -> None:
        """Read the config and the secrets anew: the job starts again."""
        for name in ("plan", "secrets", "_job"):
            self.__dict__.pop(name, None)

    def forget(self) -> None:
        """Close all connections and drop all that is in memory."""
        for worker in self.state.machines.workers if self.state.machines else ():
            self.drop(worker)
        self._hosts.clear()
        self.out_of_reach.clear()
        self._memory.clear()

    def output_log(self, worker: int, attempt: int | None = None) -> Path:
        """Where the program's output of one worker is kept."""
        return self.record.logs / f"attempt-{attempt or self.state.attempt}" / f"command_worker_{worker}.log"
