"""An emulator of one's own, from Python."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from types import TracebackType

from tpux_emulator import process
from tpux_emulator.client import Client, find_running
from tpux_emulator.clock import RATE_VARIABLE
from tpux_emulator.paths import Home

_POLL_INTERVAL = 0.02


class Emulator(Client):
    """Runs while the `with` block does; all of `Client` works on it.

    Args:
        home: its directory, which must be empty or an emulator's.
        workers: whether nodes have real workers (sshd must be installed).
        port: of the API; 0 takes a free one.
        ssh_port: where workers listen; None takes 22 or 2222.
        clock_rate: emulated seconds in a real one; None takes `TPUX_CLOCK_RATE`.
        scenario: a file to begin with.
        settings: of `settings.py`, such as `delays`.
    """

    def __init__(
        self,
        home: Path,
        *,
        workers: bool = True,
        port: int = 0,
        ssh_port: int | None = None,
        clock_rate: float | None = None,
        scenario: Path | None = None,
        **settings: object,
    ) -> None:
        super().__init__("")
        self.home = Home(Path(home))
        self._rate, self._settings = clock_rate, settings
        self._arguments = ["--port", str(port), "--workers" if workers else "--no-workers"]
        self._arguments += ["--ssh-port", str(ssh_port)] if ssh_port else []
        self._arguments += ["--scenario", str(scenario)] if scenario else []
        self.pid = 0
        self.ssh_port = 22

    def start(self) -> None:
        """Start it, or start it again after `kill` or `stop`, on the same port."""
        extra = {RATE_VARIABLE: str(self._rate)} if self._rate is not None else {}
        facts = process.start_detached(self.home, self._arguments, extra)
        self.url, self.pid = str(facts["url"]), int(str(facts["pid"]))
        self.ssh_port = int(str(facts["ssh_port"] or 22))
        self._arguments[1] = self.url.rpartition(":")[2]

    def stop(self) -> None:
        """Stop it and wait until it and its workers are gone."""
        process.stop_and_wait(self.home)

    def kill(self) -> None:
        """End it with SIGKILL, as a crash would; its workers live on."""
        os.kill(self.pid, signal.SIGKILL)
        while find_running(self.home) is not None:
            time.sleep(_POLL_INTERVAL)

    def __enter__(self) -> Emulator:
        self.start()
        if self._settings:
            self.change(**self._settings)  # type: ignore[arg-type]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if find_running(self.home) is None:
            self.start()  # it was killed: only an emulator can end the workers that it left
        self.stop()
