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
from tpux_emulator.workers import disks, processes
from tpux_emulator.workers.addresses import Block
from tpux_emulator.workers.fleet import SshFleet
from tpux_emulator.workers.homes import HomeMachines
from tpux_emulator.workers.machines import Machines
from tpux_emulator.workers.metadata import Metadata
from tpux_emulator.workers.metadata_server import MetadataServer
from tpux_emulator.workers.overlay import OverlayMachines
from tpux_emulator.workers.sshd import find_sshd

STANDARD, HIGH = 22, 2222
_TOOLS = ("unshare", "nsenter", "mount", "pivot_root", "ssh-keygen")


def check_machine(ssh_port: int | None, address: str) -> int:
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


def clear_leftovers(home: Home) -> bool:
    """End the workers that a killed emulator left, and remove their disks; whether there were any.

    No emulator may run on that state.
    """
    left = [*processes.marked(_prefix(home)), *processes.sshd_configured_in(home.workers)]
    processes.send(left, signal.SIGKILL)
    if home.workers.is_mount():
        subprocess.run(["umount", "--lazy", str(home.workers)], capture_output=True, check=False)
    disks.wipe(home.workers)
    return bool(left)


def _prefix(home: Home) -> str:
    return f"{home.path}|"


def choose_fleet(home: Home, block: Block, ssh_port: int, cloud: Cloud) -> SshFleet:
    """Workers with their own root where we are root and have the tools for it, else with their own home."""
    prefix = _prefix(home)
    machines: Machines
    if os.geteuid() == 0 and all(shutil.which(tool) for tool in _TOOLS):
        machines = OverlayMachines(home, block, ssh_port)
    else:
        machines = HomeMachines(home, block, ssh_port, prefix)
    server = MetadataServer(block, machines.metadata_port, Metadata(cloud))
    return SshFleet(block, machines, server, prefix)
