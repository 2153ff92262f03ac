"""Selects the kind of worker that this machine can run."""

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

_STANDARD_PORT, _HIGH_PORT = 22, 2222
_TOOLS = ("unshare", "nsenter", "mount", "pivot_root", "ssh-keygen")


def find_ssh_port(ssh_port: int | None, address: str) -> int:
    """Return the port for the workers' sshd: the given one, or 22 if it can be bound, or 2222.

    Args:
        ssh_port: the port that the user chose, if any.
        address: an address to check ports on.

    Raises:
        TpuxError: this is not Linux, there is no sshd, or no such port can be bound.
    """
    if sys.platform != "linux":
        raise TpuxError("workers need Linux", hint="start with `--no-workers` to emulate the API alone")
    find_sshd()
    for port in [ssh_port] if ssh_port else [_STANDARD_PORT, _HIGH_PORT]:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            try:
                probe.bind((address, port))
            except OSError:
                continue
            return port
    raise TpuxError(
        f"workers cannot listen on {address}:{ssh_port or _HIGH_PORT}",
        hint="choose another port with `--ssh-port`; ports below 1024 need root",
    )


def kill_leftovers(home: Home) -> bool:
    """Kill the workers that a killed emulator left running, and delete their disks.

    No emulator may be running in this directory.

    Returns:
        True if there were any.
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
    """Return a backend whose workers have their own root file system, or their own home directory without root."""
    prefix = _prefix(home)
    driver: MachineDriver
    if os.geteuid() == 0 and all(shutil.which(tool) for tool in _TOOLS):
        driver = OverlayDriver(home, block, ssh_port)
    else:
        driver = HomeDriver(home, block, ssh_port, prefix)
    server = MetadataServer(block, driver.metadata_port, Metadata(cloud))
    return SshWorkerBackend(block, driver, server, prefix)
