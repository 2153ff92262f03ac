"""Looking whether a job's workers are ready, while it runs or rests: without its lock, and without changing them."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tpux.errors import TpuxError
from tpux.lifecycle.connection import JobConnection
from tpux.lifecycle.modules import describe_failure, fingerprint, marker_path, stale_reason
from tpux.plugin import spec
from tpux.plugin.host import Host
from tpux.plugin.job import Job
from tpux.plugin.machines import JsonValue, Worker
from tpux.plugin.manager import Plugins
from tpux.plugin.steps import Put, Step, Steps, dry_run
from tpux.remote import process
from tpux.remote.steps import ReplayLog, StepRunner

POLL = 0.5
"""Seconds that one look at a check waits for its end."""


@dataclass(frozen=True)
class Verdict:
    """Whether one module finds one worker ready, and if not, why."""

    worker: int
    module: str
    ready: bool
    why: str = ""

    @property
    def told(self) -> str:
        """The same in words."""
        return "ready" if self.ready else f"not ready: {self.why}"

    def to_json(self) -> dict[str, JsonValue]:
        """The same as JSON knows it."""
        return asdict(self)


def look(held: JobConnection, workers: Sequence[Worker], modules: Sequence[str]) -> list[Verdict]:
    """Look at each module on each worker, the workers at once. One that cannot be reached is not ready.

    Args:
        held: the job's machines.
        workers: which of them.
        modules: which of the job's modules.
    """
    token = secrets.token_hex(4)
    answers = held.each(workers, lambda host: [_verdict(held, host, word, token) for word in modules])
    return [
        verdict
        for index, answer in answers.items()
        for verdict in (
            [Verdict(index, word, ready=False, why=answer.message) for word in modules]
            if isinstance(answer, TpuxError)
            else answer
        )
    ]


def _verdict(held: JobConnection, host: Host, word: str, token: str) -> Verdict:
    worker, section = host.worker, held.job.sections.get(word)
    why = stale_reason(host.read((marker_path(word), 0))[0], fingerprint(section))
    if not why:
        steps = held.plugins.call_one(word, spec.check, job=held.job, config=section, worker=worker)
        why = "" if steps is None else _walk(held, host, steps, f"check-{token}-{word}")
    return Verdict(worker.index, word, not why, why)


def _walk(held: JobConnection, host: Host, steps: Steps, name: str) -> str:
    """Take a check's steps; how the one that failed did, nothing where all went well."""
    with tempfile.TemporaryDirectory(prefix="tpux-check-") as directory:
        log = ReplayLog(Path(directory) / "log", f"== {name} ==")
        attempt = held.job.attempt + 1
        walk = StepRunner(host, steps, lambda n, _: process.RemoteProcess(held.job.key, attempt, f"{name}-{n}"), log)
        while not walk.turn(POLL):
            pass
    return describe_failure(*walk.failed) if walk.failed else ""


@dataclass(frozen=True)
class PlannedSteps:
    """The steps of one hook of one module, the same on several workers."""

    module: str
    hook: str
    workers: list[int]
    steps: tuple[Step, ...]

    def to_json(self) -> dict[str, JsonValue]:
        """The same as JSON knows it."""
        steps: list[JsonValue] = [_step(step) for step in self.steps]
        return {"module": self.module, "hook": self.hook, "workers": [*self.workers], "steps": steps}


def plan_steps(job: Job, plugins: Plugins, workers: Sequence[Worker], modules: Iterable[str]) -> list[PlannedSteps]:
    """The steps that checking and setting up the modules would take, in their order.

    Args:
        job: the job, which may not exist yet.
        plugins: whom to ask.
        workers: where.
        modules: which of the job's modules.

    Raises:
        TpuxError: a plugin failed.
    """
    told: list[PlannedSteps] = []
    for word in modules:
        for hook in (spec.check, spec.setup):
            alike: dict[tuple[Step, ...], list[int]] = {}
            for worker in workers:
                steps = plugins.call_one(word, hook, job=job, config=job.sections.get(word), worker=worker)
                if steps is not None:
                    alike.setdefault(tuple(dry_run(steps)), []).append(worker.index)
            told += [PlannedSteps(word, hook.__name__, indices, steps) for steps, indices in alike.items()]
    return told


def _step(step: Step) -> dict[str, JsonValue]:
    if isinstance(step, Put):
        source = f"{len(step.source)} bytes" if isinstance(step.source, bytes) else str(step.source)
        return {"put": step.remote, "from": source, "mode": f"{step.mode:o}"}
    return {"script": step.script, "may_fail": step.may_fail}
