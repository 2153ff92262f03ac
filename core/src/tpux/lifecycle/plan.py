"""What a set-up would run: the steps of the modules' checks and set-ups, for `tpux setup --dry-run`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from tpux.model.job import Job
from tpux.model.machines import Worker
from tpux.model.steps import Step, Steps, dry_run
from tpux.plugin import spec
from tpux.plugin.manager import Plugins


@dataclass(frozen=True)
class PlannedSteps:
    """The steps of one hook of one module, the same on several workers."""

    module: str
    hook: str
    workers: list[int]
    steps: tuple[Step, ...]


def plan_steps(job: Job, plugins: Plugins, workers: Sequence[Worker], modules: Iterable[str]) -> list[PlannedSteps]:
    """Return the steps that checking and setting up the modules would run, in order.

    Args:
        job: the job, which may not exist yet.
        plugins: the installed plugins.
        workers: on which workers.
        modules: which of the job's modules.

    Raises:
        TpuxError: a plugin failed.
    """
    planned: list[PlannedSteps] = []
    hooks: tuple[Callable[..., Steps], ...] = (spec.check, spec.setup)
    for module in modules:
        for hook in hooks:
            workers_by_steps: dict[tuple[Step, ...], list[int]] = {}
            for worker in workers:
                more = {"peers": ()} if hook is spec.setup else {}
                steps = plugins.call_one(module, hook, job=job, config=job.sections.get(module), worker=worker, **more)
                if steps is not None:
                    workers_by_steps.setdefault(tuple(dry_run(steps)), []).append(worker.index)
            planned += [PlannedSteps(module, hook.__name__, w, steps) for steps, w in workers_by_steps.items()]
    return planned
