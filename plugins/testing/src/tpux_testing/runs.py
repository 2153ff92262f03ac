"""Run a whole job in a temporary home."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tpux.model.events import Event
from tpux.model.failures import Failure
from tpux.model.states import JobState
from tpux_testing.sandbox import TIMEOUT, Config, Sandbox, SandboxJob


@dataclass(frozen=True)
class JobRun:
    """A job that has ended.

    Attributes:
        state: succeeded, failed or stopped.
        why: why it ended.
        failure: the failure of the last attempt, None if there is none.
        attempts: the number of attempts.
        output: what the program wrote in the last attempt, by worker.
        events: all events, oldest first.
        logs: the job's other logs by name, such as `apt_worker_0.log`: what the steps of modules ran and wrote.
    """

    state: JobState
    why: str
    failure: Failure | None
    attempts: int
    output: Mapping[int, str]
    events: tuple[Event, ...]
    logs: Mapping[str, str]


def run_job(
    config: Config,
    *,
    plugins: Mapping[str, object] | None = None,
    home: Path | None = None,
    timeout: float = TIMEOUT,
) -> JobRun:
    """Run a job until it has ended, in this process, then delete it and release its machines.

    The store and HOME are in a temporary directory. Backoff before a restart is not waited for. By default the
    workers are directories too, which needs the plugin `local`. Listeners are not called, since only a supervisor does
    that: test them with `listener_contract`.

    Args:
        config: the config as text or as a mapping; without the section `command`, it runs `true`.
        plugins: plugins that are not installed, by name; they replace installed ones.
        home: use and keep this directory; by default a new one, which is deleted.
        timeout: seconds that the job may take.

    Raises:
        ConfigError: the config is invalid.
        TpuxError: the job cannot be created, or has not ended in time.

    Example:
        run = run_job({"command": {"cmd": "htop --version"}, "setup": {"modules": ["apt"]}, "apt": {"packages": []}})
        assert run.state == "succeeded", run.why
    """
    with Sandbox(plugins, home) as sandbox:
        job = sandbox.start(config)
        job.until(lambda state: state.ended, timeout)
        return _result(job)


def _result(job: SandboxJob) -> JobRun:
    state, record = job.state, job.controller.record
    attempt = record.logs / f"attempt-{state.attempt}"
    outputs = {int(path.stem.rpartition("_")[2]): path for path in attempt.glob("command_worker_*.log")}
    return JobRun(
        state=state.state,
        why=state.why,
        failure=state.failure,
        attempts=state.attempt,
        output={index: path.read_text(errors="replace") for index, path in sorted(outputs.items())},
        events=tuple(event for event, _ in record.events()),
        logs={path.name: path.read_text(errors="replace") for path in sorted(record.logs.glob("*.log"))},
    )
