"""`tpux supervisor`: the background process that runs the user's jobs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from tpux.cli.common import Group, Json, echo, emit, iso, new_app, readable, say, short_id
from tpux.console import waiting_for
from tpux.errors import TpuxError

if TYPE_CHECKING:
    from tpux.store import Store
    from tpux.supervisor.lockfile import Status
    from tpux.supervisor.report import Report

app = new_app()
START_TIMEOUT = 30.0
"""Seconds to wait until a supervisor that was started has taken its lock."""
FORCED_TIMEOUT = 3.0
"""Seconds that `restart --force` waits until it kills."""
STARTING_TIMEOUT = 2.0
"""Seconds that `status` waits for one that a command may have started just before, if there is something to do."""


@app.callback(cls=Group)
def supervisor() -> None:
    """Show, start, stop or restart the background process that runs your jobs."""


@app.command(epilog="Example: tpux supervisor status --json")
def status(json: Json = False) -> None:
    """Show whether the supervisor is running, and for how many jobs.

    Also its environment, which listeners do not get their events, and which plugins are broken.
    """
    from tpux.lifecycle.new_config import ASKED_OF_ALL
    from tpux.plugin.manager import Plugins
    from tpux.store import Store
    from tpux.store.files import JsonFile
    from tpux.supervisor import client, heartbeat
    from tpux.supervisor.files import Files
    from tpux.supervisor.lockfile import Installation
    from tpux.supervisor.report import ListenerReports

    store = Store()
    live = [job.id for _, job in readable(store) if not job.done]
    files = Files(store.supervisor)
    running = _running_or_starting(store) if live and not files.stop.exists() else client.status(store)
    report, installed = client.current_report(store), client.find_installed(store)
    log, reports = str(files.log), (JsonFile(files.listeners, ListenerReports).load() or ListenerReports()).reports
    broken, replaced = Plugins().broken(*ASKED_OF_ALL), heartbeat.replaced(files.heartbeat)
    if json:
        data: dict[str, object] = {"running": running is not None, "user": store.user, "jobs": live, "log": log}
        data["pid"] = running and running.pid
        data["started"] = running and running.started
        data["environment"] = running and running.public_environment()
        data["differs_from_shell"] = running and running.differences()
        data["installed"] = installed and installed.by
        data["listeners"] = [{**asdict(listener), "at": iso(listener.at)} for listener in reports]
        data["installation"] = running and asdict(running.installation)
        data["problem"] = report.installation
        data["stuck"] = report.stuck
        data["replaced"] = [iso(at) for at in replaced]
        data["blocked"] = dict(report.blocked)
        data["broken_plugins"] = {name: error.message for name, error in broken.items()}
        emit(data)
    elif running is None:
        echo(f"no supervisor is running; {len(live)} active job(s)")
    else:
        echo(f"supervisor running, process {running.pid}, {len(live)} active job(s), log {log}")
        elsewhere = "" if running.installation.is_here() else f" (this is {Installation.current()})"
        echo(f"  {running.installation}{elsewhere}")
        for line in _problems(report, len(replaced)):
            echo(f"  {line}")
        differences = running.differences()
        for name, value in running.public_environment().items():
            echo(f"  {name}={value}" + (" (differs in this shell)" if name in differences else ""))
        for name in sorted(set(differences) - running.environment.keys()):
            echo(f"  {name} is not set (it is in this shell)")
    if not json:
        by = installed and ("cron" if installed.by == "crontab" else f"systemd ({installed.unit})")
        without = "not started at boot or after a crash, only by commands: see tpux supervisor install"
        echo(f"  started at boot and after a crash by {by}" if by else f"  {without}")
        for error in broken.values():
            echo(f"  {error.message}; jobs do without it")
    for listener in reports if not json else ():
        disabled = listener.disabled and running is not None
        notes = ["disabled until the supervisor starts again"] * disabled + [f"{listener.skipped} event(s) skipped"]
        echo(f"listener {listener.name} ({', '.join(notes)}): {listener.message} ({iso(listener.at)[:19]})")


def _problems(report: Report, replaced: int) -> Iterator[str]:
    if report.stuck:
        yield report.stuck
    if replaced:
        yield f"replaced {replaced} time(s) within an hour, since its main loop did not move"
    if report.installation:
        yield f"the installation has changed and cannot be used: {report.installation}"
    for job, why in report.blocked.items():
        yield f"job {short_id(job)}: {why}"


def _running_or_starting(store: Store) -> Status | None:
    """Return the running supervisor, also if it takes its lock only now; None if none runs."""
    from tpux.supervisor import client

    deadline = time.monotonic() + STARTING_TIMEOUT
    while (running := client.status(store)) is None and time.monotonic() < deadline:
        time.sleep(0.05)
    return running


@app.command(epilog="Example: tpux supervisor start")
def start() -> None:
    """Start the supervisor. Commands that act on a job start it too."""
    from tpux.store import Store
    from tpux.supervisor import client
    from tpux.supervisor.files import Files

    store = Store()
    client.notify(store)
    deadline = time.monotonic() + START_TIMEOUT
    log = Files(store.supervisor).log
    with waiting_for(lambda: f"the supervisor to start, log {log}"):
        while (running := client.status(store)) is None and any(not job.done for _, job in readable(store)):
            if time.monotonic() > deadline:
                raise TpuxError(f"no supervisor has started within {START_TIMEOUT:.0f} s", hint=f"see its log: {log}")
            time.sleep(0.05)
    if running is None:
        say("no active jobs: a supervisor starts with the next one")
    else:
        say(f"supervisor running, process {running.pid}")


@app.command(epilog="Example: tpux supervisor restart --force")
def restart(
    force: Annotated[bool, typer.Option("--force", help="Kill it if it does not end within 3 s, not 30 s.")] = False,
) -> None:
    """Stop the supervisor and start it again; programs keep running."""
    from tpux.store import Store
    from tpux.supervisor import client

    client.stop(Store(), timeout=FORCED_TIMEOUT if force else client.STOP_TIMEOUT)
    start()


@app.command(epilog="Example: tpux supervisor stop")
def stop() -> None:
    """Stop the supervisor; programs keep running on the workers.

    It is killed if it does not end within 30 s. The next command that acts on a job starts it again.
    """
    from tpux.store import Store
    from tpux.supervisor import client

    stopped = client.stop(Store())
    say("supervisor stopped; programs keep running on the workers" if stopped else "no supervisor is running")
