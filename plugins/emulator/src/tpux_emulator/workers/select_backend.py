"""Which kind of worker this machine can run."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys

from tpux import TpuxError
from tpux_emulator.cloud.cloud import Cloud
from tpux_emulator.paths import Home
from tpux_emulator.workers import processes, worker_files
from tpux_emulator.workers.addresses import AddressBlock
from tpux_emulator.workers.driver import MachineDriver
from tpux_emulator.workers.home_driver import HomeDriver
from tpux_emulator.workers.metadata import Metadata
from tpux_emulator.workers.metadata_server import MetadataServer
from tpux_emulator.workers.overlay_driver import OverlayDriver
from tpux_emulator.workers.ssh_backend import SshWorkerBackend
from tpux_emulator.workers.sshd import find_sshd

STANDARD, HIGH = 22, 2222
_TOOLS = ("unshare", "nsenter", "mount", "pivot_root", "ssh-keygen")


def find_ssh_port(ssh_port: int | None, address: str) -> int:
    """The port for the workers' sshd: 22 where it can be bound, else 2222, unless one is given.

    Raises:
        TpuxError: this is no Linux, there is no sshd, or a given port cannot be bound.
    """
    if sys.platform != "linux":
        raise TpuxError("workers need Linux", hint="`--no-workers` emulates the API alone")
    find_sshd()
    for port in [ssh_port] if ssh_port else [STANDARD, HIGH]:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            try:
                probe.bind((address, port))
            except OSError:
                continue
            return port
    raise TpuxError(
        f"workers cannot listen on {address}:{ssh_port or HIGH}",
        hint="`--ssh-port` takes another port; below 1024 needs root",
    )


def kill_leftovers(home: Home) -> bool:
    """End the workers that a killed emulator left, and remove their worker_files; whether there were any.

    No emulator may run on that state.
    """
    left = [*processes.find_marked(_prefix(home)), *processes.sshd_configured_in(home.workers)]
    processes.send(left, signal.SIGKILL)
    if home.workers.is_mount():
        subprocess.run(["umount", "--lazy", str(home.workers)], capture_output=True, check=False)
    worker_files.wipe(home.workers)
    return bool(left)


def _prefix(home: Home) -> str:
    return f"{home.path}|"


def select_backend(home: Home, block: AddressBlock, ssh_port: int, cloud: Cloud) -> SshWorkerBackend:
    """Workers with their own root where we are root and have the tools for it, else with their own home."""
    prefix = _prefix(home)
    driver: MachineDriver
    if os.geteuid() == 0 and all(shutil.which(tool) for tool in _TOOLS):
        driver = OverlayDriver(home, block, ssh_port)
    else:
        driver = HomeDriver(home, block, ssh_port, prefix)
    server = MetadataServer(block, driver.metadata_port, Metadata(cloud))
    return SshWorkerBackend(block, driver, server, prefix)
