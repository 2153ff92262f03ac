"""Child processes that send: they outlive the supervisor, which neither waits for them nor imports what they need."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tpux import JsonValue
from tpux.api.machines import clock_rate

PROGRAM = Path(__file__).with_name("send.py")
_children: list[subprocess.Popen[bytes]] = []


def start(task: Mapping[str, JsonValue]) -> subprocess.Popen[bytes]:
    """Start a sender. Its task has secrets: it reads it from its standard input, not from arguments or a file.

    Raises:
        OSError: no process can be started.
    """
    _children[:] = [child for child in _children if child.poll() is None]
    child = subprocess.Popen(
        [sys.executable, "-P", str(PROGRAM)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE if task.get("test") else subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    _children.append(child)
    assert child.stdin is not None  # noqa: S101  (for mypy)
    try:
        child.stdin.write(json.dumps({**task, "clock_rate": clock_rate()}).encode())  # less than a pipe holds
        child.stdin.close()
    except BrokenPipeError:
        pass  # it has died: the next tick starts another one
    return child


def answer(task: Mapping[str, JsonValue]) -> str:
    """Return what a sender whose task is a test prints: why it could not send, "" if it could."""
    child = start({**task, "test": True})
    assert child.stdout is not None  # noqa: S101  (for mypy)
    with child.stdout as output:
        printed = output.read().decode(errors="replace")
    child.wait()
    return printed.strip()
