"""Runs an emulator from Python."""

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
    """A context manager that runs an emulator, with the methods of `Client`.

    Args:
        home: its directory, which must be empty or an emulator's.
        workers: whether nodes have real workers, for which sshd must be installed.
        port: the API's port; 0 selects a free one.
        ssh_port: the workers' SSH port; None selects 22 or 2222.
        clock_rate: emulated seconds per real second; None takes `TPUX_CLOCK_RATE`.
        scenario: a scenario file to start with.
        kubernetes: whether it has the Kubernetes API too; `kubeconfig` is then a kubeconfig for it.
        tls: whether the Kubernetes API has TLS.
        pod_roots: whether its pods have a root file system each, where this machine permits it.
        settings: settings as in `cloud/settings.py`, such as `delays`.
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
        kubernetes: bool = False,
        tls: bool = False,
        pod_roots: bool = False,
        **settings: object,
    ) -> None:
        super().__init__("")
        self.home = Home(Path(home))
        self._rate, self._settings = clock_rate, settings
        self._arguments = ["--port", str(port), "--workers" if workers else "--no-workers"]
        self._arguments += ["--ssh-port", str(ssh_port)] if ssh_port else []
        self._arguments += ["--scenario", str(scenario)] if scenario else []
        if kubernetes:
            self._arguments += [
                "--kubernetes",
                "0",
                *(["--tls"] if tls else []),
                *(["--pod-roots"] if pod_roots else []),
            ]
        self.pid = 0
        self.ssh_port = 22

    def start(self) -> None:
        """Start the emulator; after `kill` or `stop`, on the same port as before."""
        extra = {RATE_VARIABLE: str(self._rate)} if self._rate is not None else {}
        info = process.start_detached(self.home, self._arguments, extra)
        self.url, self.pid = str(info["url"]), int(str(info["pid"]))
        self.ssh_port = int(str(info["ssh_port"] or 22))
        self._arguments[1] = self.url.rpartition(":")[2]
        if "--kubernetes" in self._arguments:
            port = str(info["kubernetes"]).rpartition(":")[2]
            self._arguments[self._arguments.index("--kubernetes") + 1] = port

    @property
    def kubeconfig(self) -> Path:
        """The kubeconfig of its Kubernetes API."""
        return self.home.kubeconfig

    def stop(self) -> None:
        """Stop the emulator and wait until it and its workers have ended."""
        process.stop_and_wait(self.home)

    def kill(self) -> None:
        """Kill the emulator with SIGKILL, like a crash. Its workers keep running."""
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
            self.start()  # after `kill`: only a running emulator can stop the workers that were left
        self.stop()
