"""The API for scripts, notebooks and command plugins: submit jobs, read their state and output, wait, stop.

Commands also find here what core's own use: access to a job's workers, options, and text for people.

A job is named by its id (12, "12" or "000012") or its name. The functions act on the jobs of `$TPUX_USER`, by default
the login name, in `$TPUX_HOME`, as the command `tpux` does; a supervisor in the background runs the jobs.

Example:
    job = api.submit("train.yaml", ["tpu.accelerator=v4-16"])
    if api.wait(job.id).state == "succeeded":
        print(api.outputs(job.id)[0].read_text())

Importing this module imports nothing heavy: its functions do when they are called.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from tpux.api.job_info import JobInfo as JobInfo
from tpux.api.job_info import info_of
from tpux.env import home as home
from tpux.errors import UsageError

if TYPE_CHECKING:
    from tpux.api import machines as machines
    from tpux.api import options as options
    from tpux.api import steps as steps
    from tpux.api import supervisor as supervisor
    from tpux.api import text as text
    from tpux.api.hints import current_hint as current_hint
    from tpux.console import confirm as confirm
    from tpux.console import emit as emit
    from tpux.console import new_app as new_app
    from tpux.console import say as say
    from tpux.lifecycle.command_steps import run_steps as run_steps
    from tpux.lifecycle.connection import JobConnection as JobConnection
    from tpux.model.events import Event
    from tpux.model.job import Job
    from tpux.model.json import JsonValue
    from tpux.store import Store
    from tpux.store.record import Record

_MODULE_OF = {
    "JobConnection": "lifecycle.connection",
    "confirm": "console",
    "current_hint": "api.hints",
    "emit": "console",
    "machines": "api.machines",
    "new_app": "console",
    "options": "api.options",
    "run_steps": "lifecycle.command_steps",
    "say": "console",
    "steps": "api.steps",
    "supervisor": "api.supervisor",
    "text": "api.text",
}
__all__ = [  # noqa: PLE0604  (the lazy names are in the table above)
    "JobInfo",
    "events",
    "follow",
    "home",
    "job",
    "jobs",
    "open_job",
    "outputs",
    "stop",
    "submit",
    "update_resolved",
    "wait",
    "workers",
    *_MODULE_OF,
]


def submit(
    config: Path | str,
    overrides: Sequence[str] = (),
    *,
    on: str | int | None = None,
    warn: Callable[[str], None] | None = None,
    once: Collection[str] = (),
) -> JobInfo:
    """Create a job and start a supervisor that runs it; returns at once.

    Args:
        config: the path of the config.
        overrides: `section.key=value` each, as on the command line.
        on: id or name of an ended job whose machines the new one takes over.
        warn: called with each warning; by default it is printed to stderr.
        once: tags of the job. If another job has all of them, none is created, however many processes try. Since 0.1.

    Returns:
        The new job.

    Raises:
        TypeError: `overrides` is one text instead of a list of them.
        ConfigError: the config has mistakes; the message lists all of them.
        UsageError: `on` has no machines that could be taken over, or the config describes other ones; another job has
            the tags of `once`.
        TpuxError: the preflight of a plugin found an error.
        OSError: the job cannot be written.
    """
    from tpux import console
    from tpux.lifecycle.create import create_job
    from tpux.plugin.manager import Plugins
    from tpux.store import Store
    from tpux.supervisor import client

    if isinstance(overrides, str):  # a sequence as well: each character would be an override
        raise TypeError(f"overrides is a list, such as {[overrides]}, not a str")
    store = Store()
    giver = store.find(str(on)) if on is not None else None
    plugins = Plugins(client.plugins_of_supervisor(store))
    record = create_job(store, Path(config), overrides, warn=warn or console.say, plugins=plugins, on=giver, once=once)
    client.notify(store)
    return info_of(record)


def jobs(*, all_users: bool = False, warn: Callable[[str], None] | None = None) -> list[JobInfo]:
    """Return the jobs, oldest first.

    Args:
        all_users: include the jobs of other users of this store.
        warn: called with a message for each job whose files are corrupt, which is left out.

    Raises:
        TpuxError: the files of a job are corrupt, and there is no `warn`.
    """
    from tpux.errors import TpuxError
    from tpux.store import Store
    from tpux.supervisor import client

    store = Store()
    report = client.current_report(store)
    users = store.users() if all_users else [store.user]
    found = []
    for record in (record for user in users for record in store.records(user)):
        try:
            found.append(info_of(record, report))
        except TpuxError as error:
            if warn is None:
                raise
            warn(f"warning: job {int(record.id)} cannot be read: {error}")
    return found


def job(name: str | int, *, note: Callable[[str], None] | None = None) -> JobInfo:
    """Return a job's current state.

    Args:
        name: the job's id or name.
        note: called with a message if several jobs have that name; then the active one is meant, else the newest.

    Raises:
        UsageError: there is no such job; without `note`: several jobs have that name.
    """
    from tpux.store import Store
    from tpux.supervisor import client

    store = Store()
    return info_of(store.find(str(name), note=note), client.current_report(store))


def events(name: str | int, *, follow: bool = False) -> Iterator[Event]:
    """Return a job's events, oldest first; docs/events.md lists the types.

    Args:
        name: the job's id or name.
        follow: wait for further events until the job has ended, and keep a supervisor running meanwhile.

    Raises:
        UsageError: there is no such job, or several have that name.
    """
    from tpux.store import Store

    store = Store()
    return _events(store, store.find(str(name)), follow=follow)


def outputs(name: str | int, *, attempt: int | None = None) -> dict[int, Path]:
    """Return the files on this machine that hold the program's output (stdout and stderr), by worker.

    Args:
        name: the job's id or name.
        attempt: by default the last one.

    Raises:
        UsageError: there is no such job, or several have that name.
    """
    from tpux.store import Store

    record = Store().find(str(name))
    directory = record.logs / f"attempt-{record.refresh().attempt if attempt is None else attempt}"
    paths = {int(path.stem.rpartition("_")[2]): path for path in directory.glob("command_worker_*.log")}
    return dict(sorted(paths.items()))


def open_job(name: str | int, *, reads: Collection[str] | None = None) -> Job:
    """Return a job as plugins see it, for a command that a plugin adds.

    Args:
        name: the job's id or name; of several jobs of that name the active one is meant, else the newest, with a note.
        reads: the sections that the command reads. Their secrets must be there, which are deleted when a job has ended;
            other sections that are not valid are left out. By default all must be valid. Since 0.1.

    Returns:
        The job. `resolved` has what the next set-up uses.

    Raises:
        UsageError: there is no such job.
        TpuxError: its config cannot be read, a plugin that it needs is not installed, or a secret of it was deleted.
    """
    import os
    from dataclasses import replace

    from tpux.console import say
    from tpux.lifecycle.open import open_job as open_
    from tpux.plugin.manager import Plugins
    from tpux.store import Store

    store = Store()
    record = store.find(str(name), note=say)
    job = open_(store, record, Plugins(), environ=os.environ, reads=reads).job
    return replace(job, resolved={**job.resolved, **record.updates()})


def workers(name: str | int, *, or_machines: bool = False) -> JobConnection:
    """Return access to the workers of one of the user's own jobs; it changes nothing of the job.

    Args:
        name: the job's id or name; of several jobs of that name the active one is meant, else the newest, with a note.
        or_machines: if there is no such job, look for machines of this name that no job of the store created.

    Returns:
        The job, its machines and connections to them: `connection.each(workers, call)` calls a function with the open
        host of each worker, in parallel.

    Raises:
        UsageError: there is no such job, or it holds no machines now; there are no machines of that name either.
        MisplacedStoreError: the store was moved or copied, and the user has not said which.
        TpuxError: a plugin that is needed is not installed, or the cloud does not answer.
    """
    from tpux.lifecycle.connection import connect_job, connect_job_or_machines

    return connect_job_or_machines(name) if or_machines else connect_job(name)


def update_resolved(name: str | int, word: str, values: Mapping[str, JsonValue]) -> None:
    """Replace what a plugin's `resolve` returned for a job. The next set-up of its workers uses it, and all later ones.

    A set-up that is under way, and the program that is running, are not affected.

    Args:
        name: the job's id or name.
        word: the plugin.
        values: what `job.resolved[word]` will have.

    Raises:
        UsageError: there is no such job, or several have that name.
        MisplacedStoreError: the store was moved or copied, and the user has not said which.
        OSError: it cannot be written.
    """
    from tpux.store import Store

    store = Store()
    store.require_in_place()
    store.find(str(name)).update(word, values)


def follow(
    name: str | int,
    until: Callable[[JobInfo], bool] | None = None,
    *,
    timeout: float | None = None,
    note: Callable[[str], None] | None = None,
) -> Iterator[JobInfo]:
    """Yield a job's state, and then each that is different, until a condition holds. Since 0.1.

    Meanwhile it keeps a supervisor running, and starts one if the job has something left to do. Leave the loop to
    wait no longer.

    Args:
        name: the job's id or name.
        until: returns whether a state is the last one; by default that is the first in which the job has ended and no
            request starts it again.
        timeout: seconds, None for no limit.
        note: called with what the job waits for, after 2 s and when that changes, such as `api.say`.

    Raises:
        TimeoutError: the condition does not hold after `timeout`.
        UsageError: there is no such job, several have that name, or it was deleted meanwhile.

    Example:
        for info in api.follow(job, lambda info: info.state == "running", timeout=600):
            api.say(f"{info.state}: {info.why}")
    """
    from tpux.store import Store

    store = Store()
    return _follow(store, store.find(str(name)), until, timeout, note)


def _follow(
    store: Store,
    record: Record,
    until: Callable[[JobInfo], bool] | None,
    timeout: float | None,
    note: Callable[[str], None] | None,
) -> Iterator[JobInfo]:
    from tpux.api.watch import watch
    from tpux.store import requests
    from tpux.supervisor import client

    if not record.refresh().done:
        client.notify(store)
    last: JobInfo | None = None
    for _ in watch(store, record, timeout=timeout, warn=note, notice=note):
        finished = until is None and requests.has_finished(record)  # before the state: nothing is missed
        info = info_of(record, client.current_report(store))
        if info != last:
            yield info
        if finished or (until is not None and info != last and until(info)):
            return
        last = info
    if not record.directory.is_dir():
        raise UsageError(f"job {int(record.id)} was deleted")
    raise TimeoutError(f"job {int(record.id)} is {record.state.state} after {timeout} s")


def wait(name: str | int, *, timeout: float | None = None) -> JobInfo:
    """Wait until a job has ended; starts a supervisor if none is running.

    Args:
        name: the job's id or name.
        timeout: seconds, None for no limit.

    Returns:
        The job's final state.

    Raises:
        TimeoutError: the job has not ended within `timeout`.
        UsageError: there is no such job, several have that name, or it was deleted meanwhile.
    """
    *_, last = follow(name, timeout=timeout)
    return last


def stop(
    name: str | int,
    *,
    release: bool = False,
    keep: bool = False,
    timeout: float | None = None,
    grace: float = 0.0,
    reason: str = "",
) -> JobInfo:
    """Stop a job and wait until it has stopped. A job that has already ended is not changed.

    The program gets SIGTERM, and SIGKILL after `command.grace_period`. By default the machines are kept for
    `tpu.keep_on_stop`.

    Args:
        name: the job's id or name.
        release: release the machines now.
        keep: keep the machines until they are released explicitly.
        timeout: seconds to wait, None for no limit; the request remains in effect.
        grace: seconds between SIGTERM and SIGKILL, if more than `command.grace_period`. Since 0.1.
        reason: why, which `why` says then; by default the user has stopped it. Since 0.1.

    Returns:
        The job's final state.

    Raises:
        ValueError: both `release` and `keep` are given.
        TimeoutError: the job has not stopped within `timeout`.
        UsageError: there is no such job, or several have that name.
    """
    from tpux.store import Store, requests
    from tpux.supervisor import client

    if release and keep:
        raise ValueError("release and keep exclude each other")
    store = Store()
    record = store.find(str(name))
    if not requests.has_finished(record) or release or keep:
        requests.write(record, "stop", release=release, keep=keep, grace=grace, reason=reason)
        client.notify(store)
    return wait(record.id, timeout=timeout)


def _events(store: Store, record: Record, *, follow: bool) -> Iterator[Event]:
    from tpux.api.watch import watch
    from tpux.store import requests

    offset = 0
    for _ in watch(store, record) if follow else [None]:
        ended = not follow or requests.has_finished(record)  # before reading: what was written until then is not missed
        for event, end in record.events(offset):
            offset = end
            yield event
        if ended:
            return
    raise UsageError(f"job {int(record.id)} was deleted")


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'tpux.api' has no attribute {name!r}")
    module = import_module(f"tpux.{_MODULE_OF[name]}")
    return module if module.__name__.endswith(f".{name}") else getattr(module, name)


def __dir__() -> list[str]:
    return __all__
