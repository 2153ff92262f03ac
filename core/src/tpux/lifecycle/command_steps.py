"""Run plugins' steps on a job's workers for a command: without the job's lock, and outside of its supervisor."""

from __future__ import annotations

import secrets
import tempfile
import time
from collections.abc import Generator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Generic, TypeVar

from tpux import env
from tpux.lifecycle.connection import JobConnection
from tpux.model.host import OpenHost
from tpux.model.json import JsonValue
from tpux.model.steps import Result, Sh, Step, Steps
from tpux.plugin import spec
from tpux.plugin.guard import PluginError
from tpux.remote import job_runs, process
from tpux.remote.markers import CHANGED, fingerprint, has_check, marker_path, stale_reason
from tpux.remote.steps import ReplayLog, StepRunner
from tpux.remote.tasks import describe_failure

R = TypeVar("R")
TIME_SLICE = 0.5
"""Seconds that one poll of a step waits for its end."""
POLL_EVERY = 0.1
"""Seconds between two polls of a step that takes longer."""


@dataclass(frozen=True)
class EndedSteps(Generic[R]):
    """How a plugin's steps ended.

    Attributes:
        problem: how the step failed that did; "" if none has.
        value: what the hook returned after its steps; None if a step has failed.
        log: what the steps ran and wrote.
    """

    problem: str
    value: R | None
    log: str


def run_steps(
    connection: JobConnection, host: OpenHost, steps: Generator[Step, Result, R], name: str, *, at_once: bool = False
) -> EndedSteps[R]:
    """Run a plugin's steps on a worker; they are not continued if the command is interrupted. Since 0.1.

    Args:
        connection: the job's machines.
        host: the worker.
        steps: what the plugin's hook returned.
        name: names the steps' processes; different for each command. The next set-up, and `tpux solve`, end those of
            a name that begins with `diagnose-`.
        at_once: the first script changes nothing: it is tried in one exchange with the worker.

    Raises:
        HostUnreachableError: the worker does not answer.
        TpuxError: the worker could not start a step, or the plugin failed.
    """
    value: list[R] = []

    def kept() -> Steps:
        value.append((yield from steps))

    with tempfile.TemporaryDirectory(prefix="tpux-steps-") as directory:
        path = Path(directory) / "log"
        key, attempt = process.worker_key(connection.job.key, host.worker.index), connection.job.attempt + 1
        runner = StepRunner(
            host,
            kept(),
            lambda n, _: process.RemoteProcess(key, attempt, f"{name}-{n}"),
            ReplayLog(path, f"== {name} =="),
            at_once=at_once,
        )
        while not runner.advance(TIME_SLICE):
            time.sleep(POLL_EVERY)
        log = path.read_text(errors="replace").partition("\n")[2]
    _forget_runs(connection, host)
    problem = describe_failure(*runner.failed) if runner.failed else ""
    return EndedSteps(problem, value[0] if value else None, log)


def run_in_environment(connection: JobConnection, host: OpenHost, script: str, name: str, timeout: float) -> bytes:
    """Run a shell script on a worker as `JobConnection.command` does, and return its output. Since 0.1.

    Args:
        connection: the job's machines.
        host: the worker.
        script: the script, for `sh`.
        name: as in `run_steps`.
        timeout: seconds after which it is ended.

    Raises:
        TimeoutError: it took longer than that.
        HostUnreachableError: the worker does not answer.
        TpuxError: it could not be started, or the environment's plugin failed.
    """
    job = connection.job
    run = process.RemoteProcess(process.worker_key(job.key, host.worker.index), job.attempt + 1, name)
    command = connection.command(host, ("sh", "-c", script), run=run.id)
    status, deadline = process.start(host, run, script, command), time.monotonic() + timeout
    output = status.output
    while status.phase == "running" or status.more:
        if time.monotonic() > deadline:
            process.stop(host, run, signal="KILL", reason="it took too long")
            raise TimeoutError(f"no answer within {timeout:.0f} s")
        time.sleep(POLL_EVERY)
        status = process.poll(host, run, len(output))
        output += status.output
    _forget_runs(connection, host)
    return output


def _forget_runs(connection: JobConnection, host: OpenHost) -> None:
    if connection.machines:  # no job removes these runs
        job_runs.remove(host, process.worker_key(connection.job.key, host.worker.index))


# --- the checks of modules ----------------------------------------------------------------------


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


def check_modules(connection: JobConnection, host: OpenHost, modules: Sequence[str]) -> list[ModuleStatus]:
    """Return whether modules are ready on a worker: the marker of the last set-up, and the module's own check.

    Args:
        connection: the job's machines.
        host: the worker.
        modules: which of the job's modules.

    Raises:
        HostUnreachableError: the worker does not answer.
    """
    markers = host.read(*((marker_path(module), 0) for module in modules)) if modules else []
    return [_check(connection, host, module, marker) for module, marker in zip(modules, markers, strict=True)]


def _check(connection: JobConnection, host: OpenHost, module: str, marker: bytes | None) -> ModuleStatus:
    section, worker = connection.job.sections.get(module), host.worker
    status = _compare(connection, worker.index, module, marker, fingerprint(section))
    if not status.ready:
        return status
    try:
        steps = connection.plugins.call_one(module, spec.check, job=connection.job, config=section, worker=worker)
        if steps is None:
            return status
        name = f"check-{secrets.token_hex(4)}-{module}"
        why = run_steps(connection, host, _check_only(steps), name, at_once=True).problem
    except PluginError as error:
        why = error.message
    return replace(status, ready=not why, why=why)


def _check_only(steps: Steps) -> Steps:
    """Pass the steps on; their scripts are told that no program follows."""
    result: Result | None = None
    while True:
        try:
            step = next(steps) if result is None else steps.send(result)
        except StopIteration:
            return
        result = yield replace(step, script=_with_variable(step)) if isinstance(step, Sh) else step


def _with_variable(step: Sh) -> str:
    """Return the script with the variable, below the comment that is its title if it begins with one."""
    first, newline, rest = step.script.strip().partition("\n")
    title, body = (f"{first}\n", rest) if first.startswith("# ") and newline else ("", step.script)
    return f"{title}{env.CHECK_ONLY}=1\n{body}"


def _compare(connection: JobConnection, worker: int, module: str, found: bytes | None, wanted: bytes) -> ModuleStatus:
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
            return ModuleStatus(worker, module, ready=False, unknown=unknown)
        why = ""
    return ModuleStatus(worker, module, not why, why, unknown)


def _deleted(names: Sequence[str]) -> str:
    """Return that secrets were deleted, and how their values can be compared."""
    one = len(names) == 1
    verb, them = ("was", "it") if one else ("were", "them")
    return f"{', '.join(names)} {verb} deleted when the job ended; export {them} to compare"
