"""Points in a supervisor at which faults happen: each write of a file, call of the allocator, exchange with a worker.

A point is a place in the code and the state of the job. Every pass of one is written to `passed`, so that faults are
counted through the whole life of a job, and not only that of one supervisor.
"""

from __future__ import annotations

import errno
import fcntl
import functools
import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import tpux_local
from tpux import HostUnreachableError, MachineStatus, Waiting
from tpux.store import files
from tpux_local.host import LocalHost

HANG = 3.0
WAITS = 2
"""How often the allocator lets a request wait."""
_lock = threading.Lock()
_directory = Path()
_faults: list[dict[str, str]] = []
_state = "pending"


def install(directory: str) -> None:
    """Wrap the functions, and read which faults are to happen."""
    global _directory, _faults  # noqa: PLW0603
    _directory = Path(directory)
    _faults = json.loads((_directory / "faults.json").read_text())
    _read_state()
    for name in ("write_atomic", "append", "append_output"):
        setattr(files, name, _wrap(getattr(files, name), _file_place, OSError(errno.ENOSPC, "No space left on device")))
    files.rename = _wrap(files.rename, lambda source, target: f"rename {_stem(target)}", OSError(errno.EIO, "no disk"))
    for name in ("run", "follow", "put", "get", "read"):
        error = HostUnreachableError("a fault of the tests")
        setattr(LocalHost, name, _wrap(getattr(LocalHost, name), functools.partial(_worker_place, name), error))
    tpux_local.inspect = _gated(tpux_local.inspect)
    tpux_local.provision = _waiting(tpux_local.provision)
    for name in ("provision", "inspect", "release"):
        place = functools.partial(_constant, f"allocator {name}")
        setattr(tpux_local, name, _wrap(getattr(tpux_local, name), place, ConnectionError("a fault of the tests")))
    with (_directory / "pids").open("a") as file:
        file.write(f"{os.getpid()}\n")


def _wrap(function: Callable[..., object], place: Callable[..., str], error: Exception) -> Callable[..., object]:
    @functools.wraps(function)
    def wrapped(*args, **kwargs):
        name = f"{place(*args, **kwargs)} in {_state}"
        _pass("before", name, error)
        answer = function(*args, **kwargs)
        _pass("after", name, error)
        return answer

    return wrapped


def _file_place(path, content, **_) -> str:
    if path.name != "events.jsonl":
        return f"write {_stem(path)}"
    event = json.loads(content)
    if event["type"] == "state-changed":
        global _state  # noqa: PLW0603
        _read_state()  # this supervisor may have waited for the lock since an earlier state
        _state = f"{_state} to {event['to']}"  # until it is the state
    return f"event {event['type']}"


def _worker_place(name: str, *_, **__) -> str:
    return f"worker {name}"


def _constant(name: str, *_, **__) -> str:
    return name


def _stem(path) -> str:
    """Return a name without numbers, which differ from life to life."""
    return re.sub(r"\d+", "N", path.name)


def _read_state() -> None:
    """Set the state of the job as of its last event."""
    global _state  # noqa: PLW0603
    for path in Path(os.environ["TPUX_HOME"]).glob("jobs/*/*/events.jsonl"):
        for line in path.read_bytes().splitlines(keepends=True):
            if line.endswith(b"\n") and b'"state-changed"' in line:
                _state = json.loads(line)["to"]


def _pass(when: str, name: str, error: Exception) -> None:
    """Note that a point was passed, and let happen what is due there."""
    global _state  # noqa: PLW0603
    point = f"{when} {name}"
    with _lock, (_directory / "passed").open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        count = sum(line == f"{point}\n" for line in file)
        file.write(f"{point}\n")
        file.flush()
        fault = next((one for one in _faults if one["point"] == point and count == int(one["count"])), None)
        if fault:
            with (_directory / "fired").open("a") as fired:
                fired.write(f"{fault['what']} {os.getpid()} {point}\n")
            if fault["what"] == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if fault["what"] == "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
    if when == "after" and name.startswith("event state-changed"):
        _state = _state.rpartition(" to ")[2]
    if fault and fault["what"] == "hang":
        time.sleep(HANG)
    if fault and fault["what"] == "error":
        raise error


def _gated(inspect: Callable[..., object]) -> Callable[..., object]:
    """Let the time to a preemption begin once all programs have written all that they write."""

    @functools.wraps(inspect)
    def gated(request):
        if (_directory / "starts/all-written").exists():
            return inspect(request)
        return MachineStatus("ready", poll_after=0.2)

    return gated


def _waiting(provision: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(provision)
    def waiting(request):
        if (waited := (request.saved_state or {}).get("waited", 0)) < WAITS:
            return Waiting("as a queue does", 0.1, saved_state={"waited": waited + 1})
        return provision(request)

    return waiting
