"""Starting, notifying and stopping the supervisor; light, since every command imports it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tpux import env
from tpux.console import say, waiting_for
from tpux.errors import TpuxError
from tpux.supervisor.files import Files
from tpux.supervisor.lockfile import PACKAGE, Installation, Status, boot_id, kill_holder, read_status

if TYPE_CHECKING:
    from tpux.plugin.entrypoints import InstalledPlugin
    from tpux.store import Store
    from tpux.supervisor.report import Report


STOP_TIMEOUT = 30.0
"""Seconds that the supervisor has to end before it is killed: longer than `scheduler.END_TIMEOUT`."""


@dataclass(frozen=True)
class Autostart:
    """What starts the supervisor, `systemd` or `crontab`, and the name of the unit."""

    by: str
    unit: str


def status(store: Store) -> Status | None:
    """Return the user's running supervisor; None if none runs, or one is just starting or ending."""
    from tpux.store import locks

    lock = Files(store.supervisor).lock
    return None if locks.is_free(lock) else read_status(lock)


def pid(store: Store) -> int | None:
    """Return the process id of the user's supervisor; None if none runs."""
    running = status(store)
    return running.pid if running else None


def current_report(store: Store) -> Report:
    """Return what the running supervisor says about itself; nothing if none runs."""
    from tpux.supervisor import report

    found, running = report.read(Files(store.supervisor).report), status(store)
    if running is None:
        return report.Report()
    found = found if found.pid == running.pid else report.Report()
    return replace(found, stuck=stuck(store, running))


def stuck(store: Store, running: Status) -> str:
    """Return that a running supervisor does not move, and what to type; "" if it moves, or runs on another machine."""
    from tpux.store import heartbeat

    seconds = heartbeat.silence(store.supervisor) if running.boot == boot_id() else 0
    return f"the supervisor has not moved for {seconds:.0f} s: tpux supervisor restart --force" if seconds else ""


def notify(store: Store) -> None:
    """Make the supervisor look for new requests; start one if none runs.

    Raises:
        MisplacedStoreError: the store was moved or copied, and the user has not said which.
        OSError: the supervisor's files cannot be written.
    """
    store.require_in_place()
    files = Files(store.supervisor)
    files.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    files.stop.unlink(missing_ok=True)
    files.wake.touch()
    _start_unless_running(store, files)
    if (running := status(store)) and (text := stuck(store, running)):
        say(f"warning: {text}")


def ensure_running(store: Store) -> bool:
    """Start a supervisor if none runs.

    Returns:
        False if the user has stopped it, or has moved or copied the store and not said which: then none is started.
    """
    from tpux.store import identity

    files = Files(store.supervisor)
    if files.stop.exists() or identity.misplaced(store.home):
        return False
    files.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    _start_unless_running(store, files)
    return True


def _start_unless_running(store: Store, files: Files) -> None:
    from tpux.store import locks

    if not locks.is_free(files.lock):
        _warn_of_differences(files)
        return
    files.warnings.unlink(missing_ok=True)
    if not _start_unit(store):
        start_process(store, "tpux.supervisor")


def unit_name(store: Store) -> str:
    """Return the name of the systemd unit of a user's supervisor, which also marks its line in a crontab."""
    import hashlib

    digest = hashlib.sha256(f"{store.home}\0{store.user}".encode(errors="surrogateescape")).hexdigest()[:8]
    return f"tpux-supervisor-{digest}.service"


def find_installed(store: Store) -> Autostart | None:
    """Return what starts the supervisor; None if nothing does."""
    from tpux.store.files import JsonFile

    found = JsonFile(Files(store.supervisor).autostart, Autostart).load()
    # The store may be a copy of one, or be shared with a machine on which nothing is installed.
    return found if found is not None and found.unit == unit_name(store) else None


def _start_unit(store: Store) -> bool:
    """Start the supervisor as the systemd unit that restarts it. Returns False if there is none, or systemd fails."""
    found = find_installed(store)
    if found is None or found.by != "systemd":
        return False
    command = ["systemctl", "--user", "start", "--no-block", found.unit]
    with suppress(OSError, subprocess.TimeoutExpired):
        return subprocess.run(command, capture_output=True, timeout=10.0, check=False).returncode == 0
    return False


def start_process(store: Store, module: str) -> None:
    """Run a module in the background, with the supervisor's environment and log.

    Args:
        store: the store that it is for.
        module: the module.
    """
    environment = {**env.supervisor_environment(os.environ), env.HOME: str(store.home), env.USER: store.user}
    files = Files(store.supervisor)
    with files.log.open("ab") as log:
        files.log.chmod(0o600)
        subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            env=environment,
            start_new_session=True,
        )


def clean_environment() -> None:
    """Remove all but the documented variables, so that plugins and the libraries that they use find no others."""
    for name in os.environ.keys() - env.supervisor_environment(os.environ).keys():
        del os.environ[name]


def _warn_of_differences(files: Files) -> None:
    """Warn if this process's environment or installation differs from the supervisor's, once for each difference."""
    running = read_status(files.lock)
    if running is None or env.RUN_ID in os.environ:  # a command inside a job has the job's environment
        return
    if names := running.differences():
        _warn_once(
            files,
            [running.pid, [(name, os.environ.get(name)) for name in names]],
            f"this shell's {', '.join(names)} differ{'s' if len(names) == 1 else ''} from the supervisor's, which jobs"
            " run with: `tpux supervisor status` shows it, `tpux supervisor stop` and `start` take over this shell's",
        )
    if not running.installation.is_here():
        _warn_once(
            files,
            [running.pid, sys.prefix, PACKAGE],
            f"this is {Installation.current()}, but jobs run with the supervisor's {running.installation} and its"
            " plugins: `tpux supervisor stop` and `start` let them run with this one",
        )


def _warn_once(files: Files, difference: list[object], text: str) -> None:
    import hashlib

    digest = hashlib.sha256(json.dumps(difference).encode(errors="surrogateescape")).hexdigest()
    with suppress(FileNotFoundError):
        if digest in files.warnings.read_text().split():
            return
    with suppress(OSError), files.warnings.open("a") as file:  # on a full disk the warning comes again
        file.write(f"{digest}\n")
    say(f"warning: {text}")


def plugins_of_supervisor(store: Store) -> dict[str, InstalledPlugin]:
    """Return the installed plugins, for a command that creates a job; those that its supervisor cannot find as broken.

    A supervisor starts in `/`, and keeps the `PYTHONPATH` that it was started with. Another installation of tpux than
    this one is warned of elsewhere.
    """
    import site

    from tpux.plugin.dists import entry_points
    from tpux.plugin.entrypoints import find

    found, running = find("tpux"), status(store)
    if running is not None and not running.installation.is_here():
        return found
    environment = os.environ if running is None else running.environment
    directories = [one for one in environment.get("PYTHONPATH", "").split(os.pathsep) if one]
    theirs = {os.path.abspath(os.path.join("/", one)) for one in directories}  # noqa: PTH100, PTH118
    here = env.current_directory()
    own = os.environ.get("PYTHONPATH", "").split(os.pathsep) if here else []
    own += [""] if here and sys.path[0] in {"", str(here)} else []
    extra = {os.path.abspath(one) for one in own} - theirs - {*site.getsitepackages(), site.getusersitepackages()}  # noqa: PTH100
    names = {entry.name for entry in entry_points("tpux", extra)}
    why = "the supervisor, which runs jobs, cannot find it: it is not in its PYTHONPATH"
    hint = "install it with pip; or set PYTHONPATH to absolute paths, then `tpux supervisor stop` and `start`"
    return {
        name: one if name in names or one.broken else replace(one, broken=why, hint=hint) for name, one in found.items()
    }


def stop(store: Store, *, timeout: float = STOP_TIMEOUT) -> bool:
    """End the supervisor, with SIGKILL if it does not end in time, and leave the jobs' programs running.

    Args:
        store: the store that it drives.
        timeout: seconds to wait for its end.

    Returns:
        True if one was running.

    Raises:
        TpuxError: it did not end in time, and is not certain to be a process of this machine.
    """
    from tpux.store import locks

    files = Files(store.supervisor)
    files.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    files.stop.touch()  # in any case: one that is just starting finds it
    files.wake.touch()
    if locks.is_free(files.lock):
        return False
    deadline, running, killed = time.monotonic() + timeout, status(store), 0
    with waiting_for(lambda: "the supervisor to end" + (f", process {running.pid}" if running else "")):
        while not locks.is_free(files.lock):
            if time.monotonic() > deadline:
                if not files.stop.exists():
                    raise TpuxError("the supervisor did not end: another command has started it again")
                if killed or not (killed := kill_holder(files.lock)):
                    raise TpuxError(f"the supervisor did not end within {timeout:.0f} s", where=str(files.log))
                say(f"the supervisor did not end within {timeout:.0f} s: process {killed} was killed")
                deadline = time.monotonic() + timeout
            time.sleep(0.05)
    return True
