"""A store of the rehearsal's own, with a supervisor of its own: neither sees the user's jobs and machines."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tpux import JsonValue, TpuxError, UsageError, api

HOME = "TPUX_HOME"
DIRECTORY = "rehearsals"
REHEARSED, UNDISTURBED = "rehearsed", "undisturbed"
"""The jobs of a rehearsal, in the order of their creation."""
_LOCK = ".lock"
_RELEASE_TIMEOUT = 120.0
_REMOVE_TIMEOUT = 20.0


@dataclass
class Sandbox:
    """The place of one rehearsal.

    Attributes:
        kept: what remains of it: the output of its jobs, and the report.
        jobs: the rehearsed jobs, by the name of the directory below `kept` that gets their output.
    """

    kept: Path
    jobs: dict[str, str] = field(default_factory=dict)

    @property
    def store(self) -> Path:
        """The directory of the store, which is deleted at the end."""
        return self.kept / "store"

    @property
    def emulator(self) -> Path:
        """The directory of the emulator, if there is one."""
        return self.store / "emulator"

    def keep_output(self) -> None:
        """Copy what the jobs wrote and what happened to them, which the store's end would delete."""
        for name, job in self.jobs.items():
            directory = api.job(job).directory
            target = self.kept / name
            target.mkdir(exist_ok=True)
            for path in ("events.jsonl", "config.yaml"):
                with suppress(FileNotFoundError):
                    shutil.copy(directory / path, target / path)
            with suppress(FileNotFoundError):
                shutil.copytree(directory / "logs", target / "logs", dirs_exist_ok=True)


def run_tpux(*arguments: str) -> str:
    """Run a command of tpux, and return what it prints.

    Raises:
        UsageError: its arguments, or the config that it reads, have mistakes.
        TpuxError: it has failed otherwise.
    """
    command = [sys.executable, "-P", "-m", "tpux", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    if done.returncode == 0:
        return done.stdout
    message = re.sub(r"(?m)^tpux: (error: )?", "", done.stderr).strip()
    raise (UsageError if done.returncode == 2 else TpuxError)(message or f"tpux {shlex.join(arguments)} has failed")


@contextmanager
def open_sandbox(name: str) -> Iterator[Sandbox]:
    """Make a store, which `tpux.api` uses from then on; at the end release its machines, and remove it.

    Args:
        name: what the directory with the output is named after, beside the time.

    Raises:
        OSError: the directory cannot be written.
    """
    root = api.home() / DIRECTORY
    root.mkdir(parents=True, exist_ok=True, mode=0o700)
    stem = f"{time.strftime('%Y-%m-%d-%H%M%S')}-{re.sub(r'[^A-Za-z0-9._-]+', '-', name)[:50]}"
    _end_abandoned(root)
    sandbox = Sandbox(_new_directory(root, stem))
    with _locked(sandbox.kept), _environment({HOME: str(sandbox.store)}):
        try:
            yield sandbox
        finally:
            api.say("ending the rehearsal's job and its supervisor")
            _close(sandbox)


def _end_abandoned(root: Path) -> None:
    """End the jobs of rehearsals whose command was killed, and remove their stores."""
    for store in sorted(root.glob("*/store")):
        with _locked(store.parent) as mine, _environment({HOME: str(store)}):
            if mine:
                api.say(f"ending the rehearsal {store.parent.name}, whose command was killed")
                jobs = [job.id for job in api.jobs(warn=api.say)]
                _close(Sandbox(store.parent, dict(zip((REHEARSED, UNDISTURBED), jobs, strict=False))))


@contextmanager
def _locked(directory: Path) -> Iterator[bool]:
    """Hold the lock of a rehearsal, which says that its command lives; yield whether it was free."""
    with (directory / _LOCK).open("w") as file:
        free = True
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            free = False
        yield free


def _new_directory(root: Path, stem: str) -> Path:
    for number in range(1, 1000):
        path = root / (stem if number == 1 else f"{stem}-{number}")
        with suppress(FileExistsError):
            path.mkdir(mode=0o700)
            return path
    raise TpuxError(f"{root / stem} exists already")


def _close(sandbox: Sandbox) -> None:
    """End what runs, one after the other, also if one of them fails; then remove the store."""
    try:
        with suppress(TpuxError, TimeoutError):
            for job in sandbox.jobs.values():
                if not api.job(job).done:
                    api.stop(job, release=True, timeout=_RELEASE_TIMEOUT)
            _wait_until_done(sandbox)
        with suppress(TpuxError):
            sandbox.keep_output()
        if sandbox.store.exists():
            run_tpux("supervisor", "stop")
            _wait_for_supervisors(sandbox.store)
    finally:
        if sandbox.emulator.exists():
            with suppress(TpuxError):  # it was not started
                run_tpux("emulator", "stop", "--home", str(sandbox.emulator))
        _remove(sandbox.store)
        (sandbox.kept / _LOCK).unlink(missing_ok=True)
        if any(sandbox.kept.iterdir()):
            api.say(f"the output of the rehearsal is kept in {sandbox.kept}")
        else:
            sandbox.kept.rmdir()


def _wait_for_supervisors(store: Path) -> None:
    """Wait until no process writes the log of a supervisor, as one does that was stopped and ends."""
    deadline = time.monotonic() + _REMOVE_TIMEOUT
    while any(_writes_below(process, store.resolve()) for process in Path("/proc").glob("[0-9]*")):
        if time.monotonic() > deadline:
            break
        time.sleep(0.05)


def _writes_below(process: Path, directory: Path) -> bool:
    try:
        return (process / "fd/2").readlink().is_relative_to(directory)
    except OSError:
        return False  # it has ended, or is another user's


def _remove(directory: Path) -> None:
    """Remove a directory, also if a process still writes there."""
    deadline = time.monotonic() + _REMOVE_TIMEOUT
    while directory.exists():
        shutil.rmtree(directory, ignore_errors=True)
        if time.monotonic() > deadline:
            api.say(f"warning: {directory} cannot be removed")
            return
        time.sleep(0.05)


def _wait_until_done(sandbox: Sandbox) -> None:
    """Wait until all machines are released, for a limited time."""
    deadline = time.monotonic() + _RELEASE_TIMEOUT
    while any(not api.job(job).done for job in sandbox.jobs.values()) and time.monotonic() < deadline:
        api.supervisor.start_if_needed()
        time.sleep(0.1)


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables; SIGTERM ends the command as Ctrl-C does."""
    before = dict(os.environ)
    os.environ.update(variables)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    handler = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, handler)
        os.environ.clear()
        os.environ.update(before)


def read_config(config: Path, overrides: list[str]) -> Mapping[str, JsonValue]:
    """Return the sections of a config with overrides.

    Raises:
        UsageError: it has mistakes.
    """
    found = json.loads(run_tpux("config", "show", "--json", str(config), *overrides))
    return found if isinstance(found, Mapping) else {}


def installed_listeners() -> list[str]:
    """Return the installed plugins that may tell somebody about the events of jobs; those of tpux keep them here."""
    rows = json.loads(run_tpux("plugins", "list", "--json"))
    ours = {"history", "ssh"}
    return [row["name"] for row in rows if "on_event" in row["hooks"] and row["name"] not in ours]
