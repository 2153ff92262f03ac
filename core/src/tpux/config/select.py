"""Which modules, environment and allocator a config selects: a section alone selects nothing."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tpux.config.document import Spot, Written
from tpux.errors import Problem, TpuxError
from tpux.plugin import spec
from tpux.plugin.entrypoints import reason
from tpux.plugin.known import did_you_mean
from tpux.plugin.manager import Plugins
from tpux.plugin.sections import CommandSection, JobSection, SetupSection, TpuSection

log = logging.getLogger(__name__)
RULES = ("pre", "resume", "reapply", "rerun", "pass")
"""The words of `job.rule` that are core's own."""
_WITHOUT_A_LIST = ("ssh", "gcsfuse")


@dataclass(frozen=True)
class Selection:
    """What prepares the workers, in its order; what wraps the command; who gets the machines; and who said so where."""

    modules: tuple[str, ...]
    environment: str | None
    allocator: str
    named_at: Mapping[str, Spot]


class Selector:
    """Finds what is selected, and whether it is there.

    Args:
        written: the config.
        plugins: the plugins.
        problems: takes what is wrong.
        warnings: takes what may be.
    """

    def __init__(
        self,
        written: Written,
        plugins: Plugins,
        problems: list[Problem],
        warnings: list[Problem],
    ) -> None:
        self._written = written
        self._plugins = plugins
        self._problems = problems
        self._warnings = warnings

    def select(self, job: JobSection, tpu: TpuSection, setup: SetupSection) -> Selection:
        """What the three sections select, without what is not there or cannot do it."""
        self._check_rule(job)
        wanted = self._wanted(job, setup)
        modules = tuple(word for word, spot in wanted.items() if self._can_prepare(word, spot, job))
        environments = [word for word in modules if self._plugins.implements(word, spec.run)]
        for word in environments[1:]:
            message = f"{environments[0]} and {word} are both environments, and a command runs in one"
            self._problems.append(Problem(wanted[word].place, message, "keep one of them"))
        named_at = {word: wanted[word] for word in modules}
        spot = self._written.spot("tpu", "allocation_mode")
        if self._can(tpu.allocation_mode, spot, "allocator", self._implements_any(spec.provision)):
            named_at[tpu.allocation_mode] = spot
        return Selection(modules, environments[0] if environments else None, tpu.allocation_mode, named_at)

    def _wanted(self, job: JobSection, setup: SetupSection) -> dict[str, Spot]:
        """The modules that the config names, in their order, and where."""
        if setup.modules is not None:
            return self._listed(setup.modules, job.env_type)
        words = {word: self._written.spot(word) for word in _WITHOUT_A_LIST if self._written.tree(word)}
        return {**words, job.env_type: self._written.spot("job", "env_type")} if job.env_type else words

    def _listed(self, modules: list[str], env_type: str | None) -> dict[str, Spot]:
        words: dict[str, Spot] = {}
        for index, word in enumerate(modules):
            spot = self._written.spot("setup", "modules", index)
            if word in words:
                self._problems.append(Problem(spot.place, f"the module {word!r} is here twice", "name it once"))
            elif word != "command":  # in jobman's lists it says that the command is run, which it is anyway
                words[word] = spot
        if env_type and env_type not in words:
            place = self._written.spot("job", "env_type").place
            message = f"the environment {env_type!r} is not used: setup.modules does not name it"
            self._warnings.append(Problem(place, message, "add it there, or drop it here"))
        return words

    def _can_prepare(self, word: str, spot: Spot, job: JobSection) -> bool:
        if word == job.env_type:
            return self._can(word, spot, "environment", self._implements_any(spec.run))
        return self._can(word, spot, "module", self._implements_any(spec.check, spec.setup, spec.run))

    def _check_rule(self, job: JobSection) -> None:
        if job.rule is not None and job.rule not in RULES:
            hint = did_you_mean(job.rule, RULES) or f"rules are {', '.join(RULES)}, and plugins' words"
            spot = self._written.spot("job", "rule")
            self._can(job.rule, spot, "rule", self._implements_any(spec.on_preempt), hint)

    def _implements_any(self, *hooks: Callable[..., object]) -> Callable[[str], bool]:
        return lambda word: any(self._plugins.implements(word, hook) for hook in hooks)

    def _can(self, word: str, spot: Spot, what: str, can: Callable[[str], bool], hint: str = "") -> bool:
        """Whether the plugin is there and can do that; if not, it is a problem."""
        try:
            if can(word):
                return True
            self._problems.append(Problem(spot.place, f"{word!r} is no {what}, although a plugin is called so", hint))
        except TpuxError as error:
            self._problems.append(Problem(spot.place, f"{what} {word!r}: {error.message}", hint or error.hint))
        return False


def count_workers(tpu: TpuSection, written: Written, problems: list[Problem]) -> int | None:
    """Return how many workers the allocator counts; None where it cannot know."""
    try:
        return tpu.count_workers()
    except TpuxError as error:
        problem = Problem(written.spot("tpu", "accelerator").place, error.message, error.hint)
    # The boundary to other people's code, as in `Plugins.call_one`.
    except Exception as error:
        log.debug("count_workers failed", exc_info=True)
        message = f"plugin {tpu.allocation_mode!r} failed to count the workers: {reason(error)}"
        problem = Problem(written.spot("tpu", "allocation_mode").place, message)
    problems.append(problem)
    return None


def check_workers(
    job: JobSection, command: CommandSection, workers: int | None, written: Written, problems: list[Problem]
) -> None:
    """Add what contradicts the number of workers to `problems`."""
    if workers is not None and job.worker_num not in {None, workers}:
        message = f"job.worker_num is {job.worker_num}, and the accelerator has {_count(workers)}"
        problems.append(Problem(written.spot("job", "worker_num").place, message, f"write {workers}, or leave it out"))
    if command.workers == "all":
        return
    chosen = command.workers if isinstance(command.workers, list) else [command.workers]
    if not chosen:
        problems.append(
            Problem(written.spot("command", "workers").place, "command.workers names no worker", 'write "all"')
        )
    for index, worker in enumerate(chosen):
        path = ("command", "workers", index) if isinstance(command.workers, list) else ("command", "workers")
        if worker in chosen[:index]:
            problems.append(Problem(written.spot(*path).place, f"worker {worker} is here twice", "name it once"))
        elif workers is not None and worker >= workers:
            message = f"there is no worker {worker}: the job has {_count(workers)}, counted from 0"
            problems.append(Problem(written.spot(*path).place, message))


def _count(workers: int) -> str:
    return "1 worker" if workers == 1 else f"{workers} workers"
