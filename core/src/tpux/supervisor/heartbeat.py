"""Whether the supervisor's main loop moves: a heartbeat for commands, and a watchdog that replaces the process.

The heartbeat is the time of a file, by CLOCK_MONOTONIC: all processes of a boot have the same one, it stands during a
suspend, and it can be set on a full disk. The file's content is when the watchdog has replaced the process, so that the
next process, of whatever version, knows it; `store/heartbeat.py` reads the time.
"""

from __future__ import annotations

import _thread
import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

TICK = 1.0
"""Real seconds between two looks of the watchdog, and between two heartbeats."""
TICKS = 60
"""Looks in a row that find the loop where it was, before the process is replaced. Looks and not seconds: a process that
was stopped (SIGSTOP), and a machine that was suspended, look at nothing."""
MAX_REPLACED, PERIOD = 3, 3600.0
"""How often the process is replaced at most within these seconds."""
SIZE = 100
"""Bytes of the file, which are written at its first use, and later in place: so that a full disk prevents nothing."""


def beat(path: Path) -> None:
    """Note that the loop moves. An error is no reason for it not to."""
    at = time.monotonic_ns()
    with suppress(OSError):
        try:
            os.utime(path, ns=(at, at))
        except FileNotFoundError:
            _write_times(path, [])
            os.utime(path, ns=(at, at))


def replaced(path: Path) -> list[float]:
    """Return when the watchdog has replaced the process within the last `PERIOD`, in seconds since the epoch."""
    try:
        times = json.loads(path.read_text())
    except (OSError, ValueError):
        return []
    now = time.time()
    return [at for at in times if isinstance(at, float) and abs(now - at) < PERIOD] if isinstance(times, list) else []


def _write_times(path: Path, times: list[float]) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        os.pwrite(handle, json.dumps(times[-MAX_REPLACED:]).encode().ljust(SIZE), 0)
    finally:
        os.close(handle)


class Watchdog:
    """A thread that replaces the process when its main loop does not move, and may do nothing that the loop may hold.

    So it takes no lock, writes no log through `logging`, and imports nothing.

    Args:
        path: the file of the heartbeat.
        check: returns why the process cannot be replaced, "" if it can; it may take a while.
        replace: replaces the process, and returns why it could not.
    """

    def __init__(self, path: Path, check: Callable[[], str], replace: Callable[[], str]) -> None:
        self._path = path
        self._check = check
        self._replace = replace
        self._beats = 0
        self._beat_at = 0.0
        self._watching = self._ended = False
        self._problem = ""

    def beat(self) -> None:
        """Note that the loop moves, and watch it from now on."""
        self._beats += 1
        if time.monotonic() >= self._beat_at:
            self._beat_at = time.monotonic() + TICK
            beat(self._path)
            if not self._watching:
                with suppress(RuntimeError, MemoryError):  # the system has no thread left: tried again
                    self._watching = True
                    try:
                        _thread.start_new_thread(self._watch, ())
                    except BaseException:
                        self._watching = False
                        raise

    def end(self) -> None:
        """Watch no more: the loop has ended."""
        self._ended = True

    def _watch(self) -> None:
        try:
            while not self._ended:
                self._wait_until_stuck()
                if not self._ended:
                    with suppress(Exception):  # without memory: tried again
                        self._revive()
        finally:
            self._watching = False

    def _wait_until_stuck(self) -> None:
        seen, ticks = self._beats, 0
        while ticks < TICKS and not self._ended:
            time.sleep(TICK)
            ticks = ticks + 1 if seen == self._beats else 0
            seen = self._beats

    def _revive(self) -> None:
        """Replace the process, or say why not."""
        seen, times = self._beats, replaced(self._path)
        if len(times) >= MAX_REPLACED:
            problem = f"it was replaced {len(times)} times within an hour: tpux supervisor restart --force"
        elif not (problem := self._check()):
            if seen != self._beats:  # it moves again
                return
            try:
                _write_times(self._path, [*times, time.time()])
            except OSError as error:  # otherwise nothing would limit how often
                problem = f"cannot write {self._path}: {error.strerror}"
            else:
                _say(f"the main loop does not move: replacing process {os.getpid()}")
                problem = self._replace()
        if problem != self._problem:
            self._problem = problem
            _say(f"the main loop does not move, and the process is not replaced: {problem}")


def _say(text: str) -> None:
    with suppress(OSError):
        os.write(2, f"{time.strftime('%Y-%m-%d %H:%M:%S')} ERROR {__name__}: {text}\n".encode(errors="replace"))
