"""A temporary home with a store of its own, where a plugin's hooks run as they do in a job."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import cast

from tpux import config, env
from tpux.clock import SystemClock
from tpux.errors import ConfigError, TpuxError
from tpux.lifecycle.advance import JobController
from tpux.lifecycle.create import create_job
from tpux.lifecycle.open import draft_job
from tpux.model.host import OpenHost
from tpux.model.job import Job
from tpux.model.json import JsonValue, SavedState
from tpux.model.machines import ProvisionRequest, Ready, Released
from tpux.model.states import RequestAction
from tpux.plugin import spec
from tpux.plugin.guard import PluginError
from tpux.plugin.manager import Plugins
from tpux.store import Store, requests
from tpux.store.state import State
from tpux.supervisor.errors import handle_error

Config = str | Mapping[str, object]
"""A config as text, or as the mapping that the text stands for. Without the section `command`, it runs `true`."""
TIMEOUT = 300.0
"""Seconds that a job may take, or an allocator to provision or release machines."""
POLL = 0.05
LOCAL = "local"
"""The plugin of the workers that are directories on this machine."""


class Sandbox:
    """A temporary directory that is HOME and the store while the context is entered; jobs end with it.

    Args:
        plugins: plugins that are not installed, by name; they replace installed ones.
        directory: use and keep this directory; by default a new one, which is deleted.

    Attributes:
        secrets: the values of `${env:NAME}` in the configs of `job`, by NAME.
    """

    def __init__(self, plugins: Mapping[str, object] | None = None, directory: Path | None = None) -> None:
        self.plugins = Plugins()
        for name, plugin in (plugins or {}).items():
            self.plugins.add(name, plugin)
        self.secrets: dict[str, str] = {}
        self._given = directory
        self._exit = ExitStack()
        self._count = 0

    def __enter__(self) -> Sandbox:
        with ExitStack() as stack:
            # What a plugin has started may still write there.
            made = self._given or Path(
                stack.enter_context(tempfile.TemporaryDirectory(prefix="tpux-testing-", ignore_cleanup_errors=True))
            )
            self.home = made.resolve()
            self.home.mkdir(parents=True, exist_ok=True)
            stack.enter_context(environment(HOME=str(self.home), **{env.HOME: str(self.home / ".tpux")}))
            self.store = Store()
            self._exit = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._exit.close()

    def new_directory(self) -> Path:
        """Return a new empty directory."""
        self._count += 1
        path = self.home / "testing" / str(self._count)
        path.mkdir(parents=True)
        return path

    def write_config(self, given: Config) -> Path:
        """Write a config to a file."""
        if not isinstance(given, str):
            given = json.dumps({"command": {"cmd": "true"}, **given}, default=str, indent=1)
        path = self.new_directory() / "job.yaml"
        path.write_text(given)
        return path

    def job(self, given: Config) -> Job:
        """Return the job that a config would create: validated, with the answers of `resolve`, not in the store."""
        loaded = config.load(self.write_config(given), plugins=self.plugins)
        self.secrets.update(loaded.secrets)
        job = draft_job(self.store, loaded, loaded.plugins)
        return replace(job, id=f"{self._count:06d}", directory=self.new_directory())

    def jobs(self, word: str, full: Config | None = None, selected: Config | None = None) -> dict[str, Job]:
        """Return jobs whose config has the section of a plugin, does not have it, and has it empty, by what they are.

        Args:
            word: the plugin.
            full: a config with the section; None leaves that job out.
            selected: a config that selects the plugin, for one that is called in no other job: without the section
                it then has its defaults.

        Returns:
            A job whose section would lack keys is left out.
        """
        jobs = {"with the section": self.job(full)} if full else {}
        rest = {} if selected is None or isinstance(selected, str) else dict(selected)
        others = {f"whose config has no section {word}": rest, f"whose section {word} is empty": {**rest, word: {}}}
        for what, given in others.items():
            with suppress(ConfigError):
                jobs[what] = self.job(given)
        return jobs

    def new_host(self) -> OpenHost:
        """Return a connection to a new local worker; its processes end with the sandbox.

        Raises:
            TpuxError: the plugin `local` is not installed.
        """
        job = self.job({})
        request = provision_request(job, job.name, self.new_directory())
        answer = self.plugins.call_one(LOCAL, spec.provision, request=request)
        self._exit.callback(self._release, request)
        if not isinstance(answer, Ready):
            raise TpuxError(f"no local worker: {answer}")
        host = self.plugins.call_one(LOCAL, spec.connect, worker=answer.allocation.workers[0], job=job)
        return cast("OpenHost", host)

    def start(self, given: Config) -> SandboxJob:
        """Create a job. It runs while `SandboxJob.until` is called; the sandbox deletes it."""
        record = create_job(
            self.store, self.write_config(given), [], warn=lambda _: None, plugins=self.plugins, clock=SystemClock(1)
        )
        record.acquire()
        clock = SkippingClock()
        job = SandboxJob(JobController(self.store, record, self.plugins, clock), clock)
        self._exit.callback(job.delete)
        return job

    def _release(self, request: ProvisionRequest) -> None:
        deadline = time.monotonic() + TIMEOUT
        while not isinstance(self.plugins.call_one(LOCAL, spec.release, request=request), Released):
            if time.monotonic() > deadline:
                raise TpuxError(f"the processes of {request.directory} do not end")
            time.sleep(POLL)


class SkippingClock(SystemClock):
    """The machine's clock, with pauses left out: `skip` advances it instead of waiting."""

    def __init__(self) -> None:
        super().__init__(1)
        self._ahead = 0.0

    def now(self) -> float:
        """Return the wall time, in seconds since the epoch."""
        return super().now() + self._ahead

    def monotonic(self) -> float:
        """Return seconds since some fixed moment."""
        return super().monotonic() + self._ahead

    def boottime(self) -> float:
        """Return seconds since some fixed moment, those of a suspend included."""
        return super().boottime() + self._ahead

    def skip(self, seconds: float) -> None:
        """Advance the clock."""
        self._ahead += seconds


class SandboxJob:
    """A job whose steps are taken in this process, with a debugger if need be; backoff is not waited for.

    Args:
        controller: the job, its lock held.
        clock: the clock of the controller.
    """

    def __init__(self, controller: JobController, clock: SkippingClock) -> None:
        self.controller = controller
        self._clock = clock

    @property
    def state(self) -> State:
        """The job's state as of its last event."""
        return self.controller.record.refresh()

    def output(self, worker: int = 0, attempt: int | None = None) -> str:
        """Return what the program wrote on one worker, by default in the current attempt."""
        log = self.controller.record.output_log(attempt or self.state.attempt, worker)
        return log.read_text(errors="replace") if log.exists() else ""

    def request(self, action: RequestAction, **options: JsonValue) -> None:
        """Request what a user can request: stop, resume, rerun, delete."""
        requests.write(self.controller.record, action, **options)

    def until(self, holds: Callable[[State], object], timeout: float = TIMEOUT) -> State:
        """Take the job's steps until a condition holds.

        Raises:
            TpuxError: it does not hold when nothing is left to do, or after `timeout` seconds.
        """
        deadline = time.monotonic() + timeout
        while not holds(state := self.state):
            pause = self._turn()
            if pause is None and not holds(self.state):
                raise TpuxError(f"the job is {self.state.state}: {self._why()}")
            if time.monotonic() > deadline:
                raise TpuxError(f"the job is still {state.state} after {timeout:.0f} s: {self._why()}")
            self._pause(state, pause or 0.0)
        return state

    def delete(self) -> None:
        """Stop the program, release the machines and remove the job."""
        if not self.controller.record.directory.exists():
            return
        self.request("delete")
        try:
            deadline = time.monotonic() + TIMEOUT
            while self.controller.record.directory.exists():
                if time.monotonic() > deadline:
                    raise TpuxError(f"the job cannot be deleted: it is {self.state.state}: {self._why()}")
                self._pause(self.state, self._turn() or 0.0)
        finally:
            self.controller.record.lock.release()

    def _turn(self) -> float | None:
        """Take one step, as the supervisor does; return the seconds until the next one."""
        try:
            pause = self.controller.advance()
        except (TpuxError, OSError) as error:
            pause = handle_error(self.controller, error)
            if isinstance(error, PluginError):
                self._clock.skip(pause or 0.0)
                return 0.0
        else:
            self.controller.errors.succeeded()
        return pause

    def _why(self) -> str:
        failure = self.state.failure
        return self.state.why or (failure.evidence if failure else "")

    def _pause(self, state: State, seconds: float) -> None:
        waits_for_core = state.state in {"pending", "recovering"} or (
            state.state == "setting-up" and not self.controller.workers.unreachable
        )
        if waits_for_core and seconds > 1:
            self._clock.skip(seconds)  # a backoff of core's; anything else takes its time in the outside world
        else:
            time.sleep(min(seconds, POLL))


def provision_request(
    job: Job,
    name: str,
    directory: Path,
    *,
    saved_state: SavedState | None = None,
    labels: Mapping[str, str] | None = None,
    public_keys: tuple[str, ...] = (),
) -> ProvisionRequest:
    """Return what a job asks of its allocator.

    Args:
        job: the job.
        name: the request's name.
        directory: the directory that the allocator may write to.
        saved_state: the state of the allocator's last answer.
        labels: the owner; by default the job's.
        public_keys: the keys to install on the machines.
    """
    word = job.tpu.allocation_mode
    return ProvisionRequest(
        name=name,
        tpu=job.tpu,
        section=job.sections.get(word),
        labels=labels or {"tpux-store": job.store_id, "tpux-user": job.user, "tpux-job": job.id},
        public_keys=public_keys,
        directory=directory,
        saved_state=saved_state or {},
        attempt=job.attempt,
        resolved=job.resolved.get(word, {}),
    )


@contextmanager
def environment(**variables: str) -> Iterator[None]:
    """Set environment variables for a while."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def only_environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Replace all environment variables for a while."""
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
