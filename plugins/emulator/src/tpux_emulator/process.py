"""Starts an emulator in the background, and stops it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping

from tpux import TpuxError
from tpux_emulator.client import Client, find_running
from tpux_emulator.paths import Home
from tpux_emulator.protojson import JsonObject

_POLL_INTERVAL = 0.05
_TIMEOUT = 30.0


def start_detached(home: Home, arguments: list[str], environment: Mapping[str, str] | None = None) -> JsonObject:
    """Start an emulator in the background.

    Args:
        home: its directory.
        arguments: the arguments of `tpux emulator start`, without `--detach` and `--home`.
        environment: additional environment variables.

    Returns:
        The contents of its server file: URL, process id and so on.

    Raises:
        TpuxError: it did not start.
    """
    if find_running(home) is not None:
        raise TpuxError("an emulator is already running in this directory", where=str(home.path),
                        hint="`tpux emulator status` shows it")  # fmt: skip
    home.make()
    home.server.unlink(missing_ok=True)
    command = [sys.executable, "-P", "-m", "tpux_emulator", "start", "--home", str(home.path), *arguments]
    with home.console.open("wb") as console:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=console,
            stderr=console,
            start_new_session=True,
            env={**os.environ, **(environment or {})},
        )
    deadline = time.monotonic() + _TIMEOUT
    while time.monotonic() < deadline:
        if child.poll() is not None:
            output = home.console.read_text(encoding="utf-8", errors="replace").strip().removeprefix("error: ")
            raise TpuxError(output or f"the emulator ended at once with exit code {child.returncode}")
        if (info := find_running(home)) is not None:
            return info
        time.sleep(_POLL_INTERVAL)
    child.kill()
    raise TpuxError(f"the emulator did not start to listen within {_TIMEOUT:g} s", where=str(home.log))


def stop_and_wait(home: Home) -> None:
    """Stop the emulator in a directory, and wait until it and its workers have ended.

    Raises:
        TpuxError: no emulator runs there, or it does not end.
    """
    Client.at(home).stop()
    deadline = time.monotonic() + _TIMEOUT
    while time.monotonic() < deadline:
        if find_running(home) is None:
            return
        time.sleep(_POLL_INTERVAL)
    raise TpuxError(f"the emulator did not end within {_TIMEOUT:g} s", where=str(home.log))
