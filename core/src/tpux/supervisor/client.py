"""Finding, starting, poking and stopping the supervisor; light, for every command imports it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tpux import env
from tpux.errors import TpuxError

if TYPE_CHECKING:
    from tpux.store import Store


@dataclass(frozen=True)
class Files:
    """The supervisor's files: its lock, the poke that wakes it, the word that stops it, its log."""

    directory: Path

    @property
    def lock(self) -> Path:
        """Held as long as it lives; in it, for people, who it is."""
        return self.directory / "lock"

    @property
    def poke(self) -> Path:
        """Touched by commands when there is news for it."""
        return self.directory / "poke"

    @property
    def stop(self) -> Path:
        """There while the user wants none."""
        return self.directory / "stop"

    @property
    def log(self) -> Path:
        """What it says."""
        return self.directory / "log"


def pid(store: Store) -> int | None:
    """The process id of the user's supervisor, None where none runs."""
    from tpux.store import locks

    lock = Files(store.supervisor).lock
    if locks.is_free(lock):
        return None
    try:
        return int(json.loads(lock.read_text())["pid"])
    except (OSError, ValueError, KeyError, TypeError):
        return None  # it has just begun, or is just ending


def notify(store: Store) -> None:
    """Make the supervisor look; start one where none runs."""
    files = Files(store.supervisor)
    files.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    files.stop.unlink(missing_ok=True)
    files.poke.touch()
    _start_unless_running(store, files)


def ensure_running(store: Store) -> bool:
    """Start a supervisor where none runs although jobs are live; False where the user has stopped it."""
    files = Files(store.supervisor)
    if files.stop.exists():
        return False
    files.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    _start_unless_running(store, files)
    return True


def _start_unless_running(store: Store, files: Files) -> None:
    from tpux.store import locks

    if not locks.is_free(files.lock):
        return
    environment = {**_own_environment(), env.HOME: str(store.home), env.USER: store.user}
    with files.log.open("ab") as log:
        files.log.chmod(0o600)
        subprocess.Popen(
            [sys.executable, "-m", "tpux.supervisor"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            env=environment,
            start_new_session=True,
        )


def _own_environment() -> dict[str, str]:
    """This process's environment, without the marks of a job: its stop would end the supervisor too."""
    inside_a_job = env.RUN_ID in os.environ
    return {
        name: value
        for name, value in os.environ.items()
        if not (inside_a_job and name.startswith("TPUX_") and name not in env.FOR_SUPERVISOR)
    }


def stop(store: Store, *, timeout: float = 30.0) -> bool:
    """End the supervisor, and leave the jobs' programs running; whether one was running.

    Raises:
        TpuxError: it did not end within `timeout` seconds.
    """
    from tpux.store import locks

    files = Files(store.supervisor)
    files.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    files.stop.touch()  # in any case: one that is just being started finds it
    files.poke.touch()
    if locks.is_free(files.lock):
        return False
    deadline = time.monotonic() + timeout
    while not locks.is_free(files.lock):
        if time.monotonic() > deadline:
            raise TpuxError(f"the supervisor did not end within {timeout:.0f} s", where=str(files.log))
        time.sleep(0.05)
    return True
