"""What a set-up would do, told without a machine: each step answers with its example."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tpux import hookspecs
from tpux.jobs import Job
from tpux.machines import JsonValue, Worker
from tpux.plugins import Plugins
from tpux.runs import dry_run
from tpux.steps import Put, Step


@dataclass(frozen=True)
class Rehearsed:
    """The steps of one hook of one module, the same on several workers."""

    module: str
    hook: str
    workers: list[int]
    steps: tuple[Step, ...]

    def to_json(self) -> dict[str, JsonValue]:
        """The same as JSON knows it."""
        steps: list[JsonValue] = [_step(step) for step in self.steps]
        return {"module": self.module, "hook": self.hook, "workers": [*self.workers], "steps": steps}


def rehearse(job: Job, plugins: Plugins, workers: Sequence[Worker], modules: Iterable[str]) -> list[Rehearsed]:
    """The steps that checking and setting up the modules would take, in their order.

    Args:
        job: the job, which may not exist yet.
        plugins: whom to ask.
        workers: where.
        modules: which of the job's modules.

    Raises:
        TpuxError: a plugin failed.
    """
    told: list[Rehearsed] = []
    for word in modules:
        for hook in (hookspecs.check, hookspecs.setup):
            alike: dict[tuple[Step, ...], list[int]] = {}
            for worker in workers:
                steps = plugins.ask(word, hook, job=job, config=job.sections.get(word), worker=worker)
                if steps is not None:
                    alike.setdefault(tuple(dry_run(steps)), []).append(worker.index)
            told += [Rehearsed(word, hook.__name__, indices, steps) for steps, indices in alike.items()]
    return told


def _step(step: Step) -> dict[str, JsonValue]:
    if isinstance(step, Put):
        source = f"{len(step.source)} bytes" if isinstance(step.source, bytes) else str(step.source)
        return {"put": step.remote, "from": source, "mode": f"{step.mode:o}"}
    return {"script": step.script, "may_fail": step.may_fail}
