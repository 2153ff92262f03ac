"""The supervisor, the process that runs the user's jobs, for a command that lets something else start it.

What starts it runs `/bin/sh SCRIPT tpux.supervisor`, where `write_start_script` has written the script, and is noted
with `set_installed`. Core starts an installed systemd unit in place of a process of its own.
"""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Literal

from tpux import env
from tpux.errors import TpuxError
from tpux.store import Store, files, requests
from tpux.store.files import JsonFile
from tpux.store.pause import Pause, save
from tpux.supervisor import client
from tpux.supervisor.files import Files


def unit_name() -> str:
    """Return the name of the systemd unit of this user and store, which also marks its line in a crontab. Since 0.1."""
    return client.unit_name(Store())


def installed_by() -> str:
    """Return what starts the supervisor, "systemd" or "crontab"; "" if nothing does. Since 0.1."""
    found = client.find_installed(Store())
    return found.by if found else ""


def set_installed(by: Literal["systemd", "crontab"] | None) -> None:
    """Note what starts the supervisor. None is nothing; then the start script is removed, too. Since 0.1.

    Raises:
        OSError: it cannot be written.
    """
    store = Store()
    paths = Files(store.supervisor)
    if by is None:
        paths.autostart.unlink(missing_ok=True)
        paths.start_script.unlink(missing_ok=True)
    else:
        JsonFile(paths.autostart, client.Autostart).save(client.Autostart(by, client.unit_name(store)))


def write_start_script() -> Path:
    """Write the shell script that starts the module it is given, with this installation and environment. Since 0.1.

    Returns:
        Its path, in the directory of the supervisor.

    Raises:
        OSError: it cannot be written.
    """
    store = Store()
    paths = Files(store.supervisor)
    environment = {**env.supervisor_environment(os.environ), env.HOME: str(store.home), env.USER: store.user}
    exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in environment.items())
    program = f'exec {shlex.quote(sys.executable)} -m "$1" >>{shlex.quote(str(paths.log))} 2>&1'
    script = f"# Written by `tpux supervisor install`.\numask 077\n{exports}cd /\n{program}\n"
    paths.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    files.write_atomic(paths.start_script, script.encode())
    return paths.start_script


def restart() -> None:
    """End the supervisor, if one runs, and start it the way that is installed; programs keep running. Since 0.1.

    Raises:
        TpuxError: it did not end in time.
    """
    store = Store()
    if client.stop(store):
        client.notify(store)


def pause(key: str, used: float, why: str, until: float) -> None:
    """Let the user's jobs wait that have not requested machines, and whose config limits a key to what is used.

    What was said of the key before is replaced. Since 0.1.

    Args:
        key: the key of the config, such as `limits.month.hours`; jobs that do not set it, or to more, do not wait.
        used: what is used of it.
        why: what they wait for, for people; `{limit}` is the job's own value.
        until: when they continue, in seconds since the epoch.

    Raises:
        OSError: it cannot be written.
    """
    save(Store(), Pause(key, used, why, until))


def hasten(name: str | int) -> bool:
    """End the backoff of a job, or ask for its machines, now. Since 0.1.

    Args:
        name: the job's id or name.

    Returns:
        Whether the job waits for one of these.

    Raises:
        UsageError: there is no such job, or it is being deleted.
        TpuxError: the job cannot be read.
        OSError: that cannot be written.
    """
    store = Store()
    record = store.find(str(name))
    if (state := record.refresh()).state not in {"provisioning", "recovering"}:
        return False
    requests.write(record, "rerun" if state.from_scratch and state.outputs else "resume")  # as the job was to start
    client.notify(store)
    return True


def start_if_needed() -> None:
    """Start a supervisor if none runs, a job needs one, and the user has not stopped it. Since 0.1."""
    store = Store()
    for record in store.records():
        try:
            needed = not record.refresh().done
        except TpuxError:
            continue  # a supervisor could not read it either
        if needed:
            client.ensure_running(store)
            break
