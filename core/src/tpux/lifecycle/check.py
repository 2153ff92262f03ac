"""Check whether a job's workers are ready: the markers of completed setups, and the modules' own checks.

The check of a whole job runs without its lock, and changes nothing on the workers.
"""

from __future__ import annotations

import secrets
import tempfile
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from tpux import env
from tpux.errors import TpuxError
from tpux.lifecycle.connection import JobConnection
from tpux.model.host import Host
from tpux.model.job import Job
from tpux.model.json import JsonValue
from tpux.model.machines import Worker
from tpux.model.steps import Put, Result, Sh, Step, Steps, dry_run, sh
from tpux.plugin import spec
from tpux.plugin.guard import PluginError
from tpux.plugin.manager import Plugins
from tpux.remote import process
from tpux.remote.markers import CHANGED, fingerprint, has_check, marker_path, stale_reason
from tpux.remote.steps import ReplayLog, StepRunner, run_together
from tpux.remote.tasks import describe_failure

TIME_SLICE = 0.5
"""Seconds that one poll of a check waits for its end."""
TOGETHER_TIMEOUT = 45.0
"""Seconds that the first scripts of all checks may take together; those that take longer are run again, one by one."""
POLL_EVERY = 0.1
"""Seconds between two polls of a check that takes longer."""


# --- a whole job --------------------------------------------------------------------------------


@dataclass(frozen=True)
class ModuleStatus:
    """Whether one module is ready on one worker.

    Attributes:
        why: why it is not ready; "" if it is.
        unknown: what could not be compared, "" if everything could.
    """

    worker: int
    module: str
    ready: bool
    why: str = ""
    unknown: str = ""

    @property
    def text(self) -> str:
        """The verdict in words."""
        verdict = "ready" if self.ready else f"not ready: {self.why}" if self.why else "unknown"
        return f"{verdict}: {self.unknown}" if self.unknown else verdict

    def to_json(self) -> dict[str, JsonValue]:
        """Return the result for `--json`."""
        return asdict(self)


def check_job(connection: JobConnection, workers: Sequence[Worker], modules: Sequence[str]) -> list[ModuleStatus]:
    """Check each module on each worker, the workers in parallel. An unreachable worker is not ready.

    Args:
        connection: the job's machines.
        workers: which workers.
        modules: which of the job's modules.
    """
    name = f"check-{secrets.token_hex(4)}"
    wanted = {module: fingerprint(connection.job.sections.get(module)) for module in modules}
    answers = connection.each(workers, lambda host: _check_worker(connection, host, wanted, name))
    return [
        verdict
        for index, answer in answers.items()
        for verdict in (
            [ModuleStatus(index, name, ready=False, why=answer.message) for name in modules]
            if isinstance(answer, TpuxError)
            else answer
        )
    ]


def _check_worker(connection: JobConnection, host: Host, wanted: Mapping[str, bytes], name: str) -> list[ModuleStatus]:
    """Return whether each module is ready on one worker.

    A check mostly consists of one script: these are run together with a look at the markers, in one exchange.

    Args:
        connection: the job's machines.
        host: the worker.
        wanted: the modules, and the marker of the config of each.
        name: names the steps' processes.
    """
    modules = list(wanted)
    checks, first, failures = dict[str, Steps](), dict[str, Step](), dict[str, str]()
    for module in modules:
        section = connection.job.sections.get(module)
        try:
            steps = connection.plugins.call_one(
                module, spec.check, job=connection.job, config=section, worker=host.worker
            )
            if steps is not None and (step := next(steps, None)) is not None:
                checks[module], first[module] = steps, step
        except PluginError as error:
            failures[module] = error.message
    results = run_together(host, _scripts(modules, first), TOGETHER_TIMEOUT) if modules else {}
    verdicts = []
    for module, marker in zip(modules, _markers(host, modules, results.get("")), strict=True):
        verdict = _compare(connection, host.worker, module, marker, wanted[module])
        if verdict.ready:
            why = failures.get(module, "")
            if module in checks:
                steps, step, result = checks[module], first[module], results.get(module)
                why = _finish_check(connection, host, steps, step, result, f"{name}-{module}")
            verdict = replace(verdict, ready=not why, why=why)
        elif module in checks:
            with suppress(PluginError):  # the marker has decided
                checks[module].close()
        verdicts.append(verdict)
    return verdicts


def _scripts(modules: Sequence[str], first: Mapping[str, Step]) -> dict[str, Sh]:
    """Return the scripts among the first steps of the checks, and as "" one that prints the markers, a line each."""
    look = sh(_MARKERS, paths=[marker_path(module) for module in modules])
    scripts = {module: step for module, step in first.items() if isinstance(step, Sh)}
    only = f"{env.CHECK_ONLY}=1\n"
    return {"": look, **{module: replace(step, script=only + step.script) for module, step in scripts.items()}}


# Without a process for each.
_MARKERS = """
for path in {paths}; do
    line=
    if [ -e "$path" ]; then read -r line <"$path" || :; echo "+$line"; else echo -; fi
done 2>/dev/null
"""


def _markers(host: Host, modules: Sequence[str], printed: Result | None) -> list[bytes | None]:
    """Return the content of the modules' markers; None for one that does not exist."""
    lines = [] if printed is None else printed.output.splitlines(keepends=True)
    # What a shell or the loader warns of at its start comes before.
    lines = [line for line in lines if line.startswith(b"+") or line == b"-\n"]
    if len(lines) != len(modules):
        return host.read(*((marker_path(module), 0) for module in modules))
    return [line[1:] if line.startswith(b"+") else None for line in lines]


def _compare(
    connection: JobConnection, worker: Worker, module: str, found: bytes | None, wanted: bytes
) -> ModuleStatus:
    """Return what a module's marker says; it is ready only if its check, if it has one, succeeds too.

    Args:
        connection: the job and its workers.
        worker: the worker that has the marker.
        module: the module.
        found: the marker on the worker; None if there is none.
        wanted: the marker of the module's present config.
    """
    decides, unknown = has_check(connection.plugins, module), ""
    why = stale_reason(found, wanted, has_check=decides)
    if why == CHANGED and (names := connection.deleted_secrets.get(module)):
        unknown = f"its config cannot be compared with its last set-up: {_deleted(names)}"
        if not decides:
            return ModuleStatus(worker.index, module, ready=False, unknown=unknown)
        why = ""
    return ModuleStatus(worker.index, module, not why, why, unknown)


def _deleted(secrets: Sequence[str]) -> str:
    """Return that secrets were deleted, and how their values can be compared."""
    one = len(secrets) == 1
    verb, them = ("was", "it") if one else ("were", "them")
    return f"{', '.join(secrets)} {verb} deleted when the job ended; export {them} to compare"


def _finish_check(
    connection: JobConnection, host: Host, steps: Steps, step: Step, result: Result | None, name: str
) -> str:
    """Run the rest of a check.

    Args:
        connection: the job's machines.
        host: the worker.
        steps: the check, which has yielded its first step.
        step: that step.
        result: its result; None if it was not run, or did not end.
        name: names the steps' processes.

    Returns:
        How the step failed that did; "" if none has.
    """
    try:
        if result is not None:
            if not result.ok and isinstance(step, Sh) and not step.may_fail:
                steps.close()
                return describe_failure(step, result)
            step = steps.send(result)
        runner, _ = run_steps_once(connection, host, _beginning_with(step, steps), name)
    except StopIteration:
        return ""
    except PluginError as error:
        return error.message
    return describe_failure(*runner.failed) if runner.failed else ""


def _beginning_with(step: Step, steps: Steps) -> Steps:
    """Yield a step that was taken from `steps`, and then the others."""
    while True:
        result = yield step
        try:
            step = steps.send(result)
        except StopIteration:
            return


def run_steps_once(
    connection: JobConnection, host: Host, steps: Generator[Step, Result, object], name: str
) -> tuple[StepRunner, str]:
    """Run a plugin's steps for a command, which does not continue them if it is interrupted.

    Args:
        connection: the job's machines.
        host: the worker.
        steps: what the plugin's hook returned.
        name: names the steps' processes; different for each command.

    Returns:
        The runner, which has the failed step and the generator's value, and what it logged.
    """
    with tempfile.TemporaryDirectory(prefix="tpux-steps-") as directory:
        path = Path(directory) / "log"
        log = ReplayLog(path, f"== {name} ==")
        key, attempt = process.worker_key(connection.job.key, host.worker.index), connection.job.attempt + 1
        runner = StepRunner(host, steps, lambda n, _: process.RemoteProcess(key, attempt, f"{name}-{n}"), log)
        while not runner.advance(TIME_SLICE):
            time.sleep(POLL_EVERY)
        return runner, path.read_text(errors="replace").partition("\n")[2]


# --- a dry run ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class PlannedSteps:
    """The steps of one hook of one module, the same on several workers."""

    module: str
    hook: str
    workers: list[int]
    steps: tuple[Step, ...]

    def to_json(self) -> dict[str, JsonValue]:
        """Return the steps for `--json`."""
        steps: list[JsonValue] = [_step(step) for step in self.steps]
        return {"module": self.module, "hook": self.hook, "workers": [*self.workers], "steps": steps}


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


def _step(step: Step) -> dict[str, JsonValue]:
    if isinstance(step, Put):
        source = f"{len(step.source)} bytes" if isinstance(step.source, bytes) else str(step.source)
        return {"put": step.remote, "from": source, "mode": f"{step.mode:o}"}
    return {"script": step.script, "may_fail": step.may_fail}
