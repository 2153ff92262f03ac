"""Read-only access to machines for commands and plugins running outside the supervisor: a job's, or without a job."""

from __future__ import annotations

import os
import re
import secrets
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TypeAlias, TypeVar, cast

from tpux import config, env
from tpux.clock import SystemClock
from tpux.console import say, waiting_for
from tpux.errors import HostIdentityError, NoSuchJobError, TpuxError, UsageError
from tpux.lifecycle.open import (
    attempt_variables,
    build_request,
    draft_job,
    open_job,
    sections_with,
)
from tpux.model.failures import Failure, Finding
from tpux.model.host import OpenHost
from tpux.model.job import Command, Job
from tpux.model.machines import Allocation, MachineStatus, Peer, Ready, Waiting, Worker
from tpux.model.steps import Result, Step, Steps
from tpux.plugin import spec
from tpux.plugin.entrypoints import find, may_implement
from tpux.plugin.manager import Plugins
from tpux.plugin.selected import selected_plugins
from tpux.remote import process
from tpux.remote.connections import connect
from tpux.remote.fanout import fanout
from tpux.remote.followed_script import RemoteScript
from tpux.remote.forwarded import open_forwarded
from tpux.store import Store
from tpux.store.hooks import HookObserver
from tpux.store.state import State

_NAME = re.compile("[A-Za-z][-._A-Za-z0-9]*")
KEYS_TIMEOUT = 120.0
"""Seconds until the machines must accept this user's keys."""

R = TypeVar("R")
Diagnosis: TypeAlias = Generator[Step, Result, Sequence[Finding] | None]
"""The steps of a `diagnose`, and what they return at their end."""


class _Waits:
    """Says which workers are waited for, if that takes long: once for those that are at the same time."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._lock = threading.Lock()
        self._waited_for: list[int] = []
        self._said: set[int] = set()

    @contextmanager
    def on(self, worker: Worker) -> Iterator[None]:
        self._waited_for.append(worker.index)
        try:
            with waiting_for(self._others):
                yield
        finally:
            self._waited_for.remove(worker.index)

    def _others(self) -> str:
        with self._lock:
            late = sorted({*self._waited_for} - self._said)
            self._said.update(late)
        return f"worker {', '.join(map(str, late))} of {self._title}" if late else ""


@dataclass(frozen=True)
class JobConnection:
    """A job, and the machines that it holds.

    Attributes:
        machines: the name of machines that no job holds; `job` then stands for them and is not in the store.
        deleted_secrets: by section, the secrets in it whose values were deleted when the job ended.
        supervisor: the socket of the supervisor, over whose connections hosts are opened if it drives the job.
    """

    job: Job
    allocation: Allocation
    plugins: Plugins
    state: State
    machines: str = ""
    deleted_secrets: Mapping[str, Sequence[str]] = field(default_factory=dict)
    supervisor: Path | None = None

    @cached_property
    def _waits(self) -> _Waits:
        return _Waits(self.title)

    @property
    def name(self) -> str:
        """A short name: the job's id, or that of machines without a job."""
        return self.machines or str(int(self.job.id))

    @property
    def title(self) -> str:
        """The same for messages, such as `job 12`."""
        return self.machines or f"job {self.name}"

    def open(self, worker: Worker) -> OpenHost:
        """Connect to a worker; the caller closes the connection.

        Raises:
            HostUnreachableError: the worker does not answer.
        """
        with self._waits.on(worker):
            if self.supervisor and (host := open_forwarded(self.supervisor, self.job.id, worker)):
                return host
            return connect_worker(self.plugins, self.allocation.transport, worker, self.job, self.state)

    def current_worker(self, worker: Worker) -> Worker | None:
        """Return a worker as its allocator describes it now, None if that is unknown.

        Raises:
            TpuxError: the allocator could not be asked.
        """
        return _current_worker(self.plugins, worker, self.job, self.state)

    def each(self, workers: Sequence[Worker], call: Callable[[OpenHost], R]) -> dict[int, R | TpuxError]:
        """Call `call` with the host of each worker, in parallel.

        Args:
            workers: which workers.
            call: takes an open host, which is closed afterwards.

        Returns:
            The result, or the error, of each worker.
        """

        def one(_: int, worker: Worker) -> R:
            with self._waits.on(worker), closing(self.open(worker)) as host:
                return call(host)

        return fanout({worker.index: worker for worker in workers}, one)

    def inspect(self) -> MachineStatus | None:
        """Return the state of the machines, as the allocator says; None if it cannot. Since 0.1.

        Raises:
            TpuxError: the allocator could not be asked.
        """
        request = build_request(self.job, self.state)
        return self.plugins.call_one(self.job.tpu.allocation_mode, spec.inspect, request=request)

    def diagnoses(self, worker: Worker) -> list[tuple[str, Diagnosis | TpuxError]]:
        """Return the steps that examine a worker, or why there are none, with the plugin that has them. Since 0.1."""
        return self.plugins.call_each(self.job, spec.diagnose, job=self.job, config=None, worker=worker)

    def repairs(self, worker: Worker) -> list[tuple[str, Steps | TpuxError]]:
        """Return the steps that repair a worker, or why there are none, with the plugin that has them. Since 0.1."""
        job, failure = self.job, self.state.failure or Failure("unknown")
        return self.plugins.call_each(job, spec.solve, job=job, config=None, failure=failure, worker=worker)

    def script(self, script: str, *, beside: bool = False) -> RemoteScript:
        """Return a bash script to run in the home directory of workers; it ends with its connection, as with ssh.

        `follow(host, receive, timeout=...)` runs it on a worker, passes its output on as it comes, and returns its exit
        code; `terminate(host)` ends it. Since 0.1.

        Args:
            script: the script.
            beside: run it where the job's program runs (`command`), and not in the home directory.

        Raises:
            UsageError: it is too long for a shell, or the job is not set up, so that there is nowhere to run it.
        """
        if beside:
            self._require_set_up()
        return RemoteScript(self.job, script, self.command if beside else lambda _, argv, **__: Command(argv, ""))

    def command(self, host: OpenHost, argv: tuple[str, ...], *, run: str = "") -> Command:
        """Return the command that runs `argv` where the job's program runs: in its directory and in its environment.

        It gets the variables of the attempt and those of the config, but for those that refer to secrets. Since 0.1.

        Args:
            host: the worker.
            argv: the program and its arguments.
            run: the id of the run, if it is to be one.

        Raises:
            HostUnreachableError: the worker does not answer.
            PluginError: a plugin's `prepare_command` or `run` failed.
        """
        job, worker = self.job, host.worker
        home = host.run("pwd -P").text.rpartition("\n")[2] if job.environment else ""
        given = {**job.job.variables(), **attempt_variables(self.state, worker), **job.command.env}
        given = {name: value for name, value in given.items() if "${" not in value}
        # Only where the program starts is taken from what its plugins prepare: the rest is for the program itself.
        made = self._prepared(worker, {**given, env.RUN_ID: run, env.RUN_HOME: home})
        made = Command(
            argv, "", {**given, env.RUN_ID: run, env.RUN_HOME: home}, (), made.cwd, made.directories, beside=True
        )
        if job.environment:
            made = self._call(job.environment, spec.run, made, worker)
        return made

    def login(self, host: OpenHost, argv: tuple[str, ...]) -> str:
        """Write a file onto a worker with which `sh` runs `argv` as `command` does, and which removes itself then.

        Since 0.1.

        Returns:
            The file's path, relative to the home directory, without characters that a shell interprets.

        Raises:
            UsageError: the job is not set up.
        """
        self._require_set_up()
        path, text = f".tpux/logins/{secrets.token_hex(8)}", process.execute(self.command(host, argv))
        host.put(f'{{\nrm -f "$0"\n{text}\n}}\n'.encode(errors="surrogateescape"), path)
        return path

    def _require_set_up(self) -> None:
        state, shown = self.state, self.name
        only = state.setup_only is not None and state.state == "stopped"
        if state.prepared or state.attempt_ready or only or not self.job.modules or self.machines:
            return
        follow = f"follow it: tpux logs -f {shown}" if not state.ended else f"set it up: tpux setup {shown}"
        message = f"the set-up of {self.title} is not complete: it {_is(state)}"
        raise UsageError(message, hint=f"{follow}; --host runs it on the bare machine")

    def peers_of(self, worker: Worker) -> list[Peer]:
        """Return the other workers that one can run a shell on, as `setup` of a module gets them. Since 0.1."""
        return [peer for peer in self._reachable if peer.index != worker.index]

    @cached_property
    def _reachable(self) -> list[Peer]:
        return reachable_workers(self.plugins, self.allocation, self.job)

    def program_directory(self, worker: Worker) -> str:
        """Return where the program starts on a worker, relative to the home directory; that itself is ".".

        Raises:
            PluginError: a plugin's `prepare_command` failed.
        """
        return self._prepared(worker, attempt_variables(self.state, worker)).cwd

    def _prepared(self, worker: Worker, variables: Mapping[str, str]) -> Command:
        command = Command(argv=("true",), script="true", env=variables)
        for name in selected_plugins(self.job):
            command = self._call(name, spec.prepare_command, command, worker)
        return command

    def _call(self, name: str, hook: Callable[..., Command | None], command: Command, worker: Worker) -> Command:
        config = self.job.sections.get(name)
        answer = self.plugins.call_one(name, hook, job=self.job, command=command, config=config, worker=worker)
        return command if answer is None else answer

    def worker(self, index: int) -> Worker:
        """Return the worker of that number.

        Raises:
            UsageError: there is none.
        """
        workers = self.allocation.workers
        if not 0 <= index < len(workers):
            hint = f"it has {len(workers)}, counted from 0"
            raise UsageError(f"{self.title} has no worker {index}", hint=hint)
        return workers[index]


def _is(state: State) -> str:
    return f"{'has' if state.state in {'succeeded', 'failed'} else 'is'} {state.state}"


def connect_job(job: str | int) -> JobConnection:
    """Return access to the machines of one of the user's own jobs.

    Args:
        job: its id or its name; of several jobs of that name the active one is meant, else the newest, with a note.

    Raises:
        UsageError: there is no such job, or it holds no machines now.
        MisplacedStoreError: the store was moved or copied, and the user has not said which.
        TpuxError: a plugin that it needs is not installed.
    """
    store, plugins = Store(), Plugins()
    store.require_in_place()
    record = store.find(str(job), note=say)
    state = record.refresh()
    if (allocation := state.machines) is None:
        shown = int(state.id)
        again = "rerun" if state.state == "succeeded" else "resume"
        hint = f"tpux {again} {shown} requests new ones" if state.ended else f"wait for them: tpux logs -f {shown}"
        raise UsageError(f"job {shown} {_is(state)} and holds no machines", hint=hint)
    plugins = plugins.observed(HookObserver(store, SystemClock(), record.directory))
    opened = open_job(store, record, plugins, "look", os.environ)
    deleted = sections_with(record, opened.deleted)
    return JobConnection(opened.job, allocation, opened.plugins, state, "", deleted, store.socket)


def reachable_workers(plugins: Plugins, allocation: Allocation, job: Job) -> list[Peer]:
    """Return the workers of a job that the others can run a shell on, as their transport says."""
    return [
        Peer(worker.index, tuple(shell))
        for worker in allocation.workers
        if (shell := plugins.call_one(allocation.transport, spec.shell_on, worker=worker, job=job))
    ]


def connect_worker(
    plugins: Plugins,
    transport: str,
    worker: Worker,
    job: Job,
    state: State,
    interrupted: threading.Event | None = None,
    on_change: Callable[[Worker], None] | None = None,
    *,
    asks: bool = True,
) -> OpenHost:
    """Connect to a worker. If another machine answers, ask the allocator who is there now, and connect once more.

    Args:
        plugins: the installed plugins.
        transport: the plugin that connects.
        worker: the worker as it was allocated.
        job: the job.
        state: the job's state.
        interrupted: once it is set, calls of the host raise `StepInterruptedError`.
        on_change: called with the worker as the allocator describes it now, if that is who answers.
        asks: the allocator may be asked.

    Raises:
        HostIdentityError: the machine is not the one that the allocator describes, or that is unknown.
        HostUnreachableError: the worker does not answer.
    """
    try:
        return connect(plugins, transport, worker, job, interrupted)
    except HostIdentityError as error:
        if not asks:
            raise
        try:
            current = _current_worker(plugins, worker, job, state)
        except TpuxError as unknown:
            message = f"{error.message}; the allocator cannot say whether it is right: {unknown.message}"
            raise HostIdentityError(message, where=error.where, hint=error.hint) from error
        if current is None or current == worker:
            raise
    host = connect(plugins, transport, current, job, interrupted)
    if on_change is not None:
        on_change(current)
    return host


def _current_worker(plugins: Plugins, worker: Worker, job: Job, state: State) -> Worker | None:
    request = replace(build_request(job, state), describe_workers=True)
    status = cast("MachineStatus | None", plugins.call_one(job.tpu.allocation_mode, spec.inspect, request=request))
    if status is not None and status.workers is None and status.state == "unknown":
        raise TpuxError(status.evidence or "it does not say in what state the machines are")
    return next((each for each in (status and status.workers) or () if each.index == worker.index), None)


def connect_job_or_machines(name: str | int) -> JobConnection:
    """Return access to the machines of a job, or else to those of this name that no job of the store created.

    Args:
        name: a job's id or name, or the name of machines that an installed allocator can find.

    Raises:
        UsageError: there is neither.
        MisplacedStoreError: the store was moved or copied, and the user has not said which.
        TpuxError: a plugin that is needed is not installed, or the cloud does not answer.
    """
    try:
        return connect_job(name)
    except NoSuchJobError as error:
        name = str(name)
        if not _NAME.fullmatch(name):
            raise
        problems: list[TpuxError] = []
        broken: list[str] = []
        if (found := _find(name, problems, broken)) is not None:
            return found
        why = "; ".join(problem.message for problem in problems)
        asked = f" (no TPU of that name was looked for: {why})" if why else ", and no TPU of that name"
        hints = [error.hint, *(problem.hint for problem in problems)]
        if broken:
            asked += f" (not asked, because broken: {', '.join(broken)})"
            hints.append("tpux plugins list")
        raise NoSuchJobError(f"{error.message}{asked}", hint="; ".join(filter(None, hints))) from error


def _find(name: str, problems: list[TpuxError], broken: list[str]) -> JobConnection | None:
    """Ask each allocator for machines of this name.

    Args:
        name: the name.
        problems: errors are appended to it.
        broken: plugins that cannot be loaded, and may be allocators that find machines, are appended to it.
    """
    store, plugins = Store(), Plugins()
    installed = find("tpux")
    for allocator in plugins.names():
        plugin = installed.get(allocator)  # None if it was uninstalled just now
        if plugin is None or not may_implement(plugin, spec.find_machines.__name__):
            continue
        try:
            if not plugins.implements(allocator, spec.find_machines):
                continue
        except TpuxError:
            broken.append(allocator)
            continue
        try:
            if (found := _ask(store, plugins, allocator, name)) is not None:
                return found
        except TpuxError as error:
            problems.append(error)
    return None


def _ask(store: Store, plugins: Plugins, allocator: str, name: str) -> JobConnection | None:
    job = _stand_in(store, plugins, allocator, name)
    answers = [plugins.call_one(plugin, spec.public_keys, job=job) for plugin in selected_plugins(job)]
    keys = tuple(key for answer in answers for key in answer or [])
    now = time.time()
    state = State(job.id, job.user, name, now, now, now)
    deadline, said = time.monotonic() + KEYS_TIMEOUT, ""
    while True:
        request = build_request(job, state, keys)
        answer = cast("Ready | Waiting | None", plugins.call_one(allocator, spec.find_machines, request=request))
        if answer is None:
            return None
        state = replace(state, saved_state=dict(answer.saved_state or {}))
        if isinstance(answer, Ready):
            return JobConnection(job, answer.allocation, plugins, state, machines=name)
        if time.monotonic() > deadline:
            raise TpuxError(f"{name} is not ready after {KEYS_TIMEOUT:.0f} s: {answer.why}")
        if answer.poll_after and answer.why != said:
            say(said := answer.why)
        time.sleep(answer.poll_after)


def _stand_in(store: Store, plugins: Plugins, allocator: str, name: str) -> Job:
    """Return a job that is not in the store, with default sections, whose machines are those of this name.

    Args:
        store: the store, whose directory has the files that the transport keeps.
        plugins: the installed plugins.
        allocator: the allocator that is asked.
        name: the name of the machines.
    """
    text = f"tpu: {{allocation_mode: {allocator}, name: '{name}'}}\ncommand: 'true'\n"
    stored = config.Stored(text, {}, {}, env.user_home())
    loaded = config.load(Path(f"{name}.yaml"), plugins=plugins, stored=stored)
    directory = store.home / "machines" / name
    (directory / "ssh").mkdir(parents=True, exist_ok=True, mode=0o700)
    return replace(draft_job(store, loaded, plugins, machines=name), directory=directory)
