"""Workers with a root file system each: an overlay over this machine's, in its own namespaces. Needs root."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from tpux import TpuxError
from tpux_emulator.cloud.records import NodeRecord, WorkerRecord
from tpux_emulator.paths import Home
from tpux_emulator.workers import overlays, processes, worker_files
from tpux_emulator.workers.addresses import AddressBlock
from tpux_emulator.workers.driver import worker_key
from tpux_emulator.workers.sshd import config, root_environment

_LIB = "usr/lib/tpux-emulator"
_SUDOERS = "%google-sudoers ALL=(ALL:ALL) NOPASSWD:ALL\n"


class OverlayDriver:
    """The machine driver for workers with a root file system each.

    Args:
        home: the emulator's directory. The disks are on a tmpfs in it, because an overlay's upper layer cannot be on
            the file system that the overlay covers.
        block: the emulator's addresses.
        ssh_port: the port of the workers' sshd.
    """

    metadata_port = 80
    shared = overlays.SHARED

    def __init__(self, home: Home, block: AddressBlock, ssh_port: int) -> None:
        self._disks, self._image, self._block, self.ssh_port = home.workers, home.image, block, ssh_port
        self._shared = home.shared

    def open(self) -> None:
        """Mount the tmpfs, unless a killed emulator left it mounted.

        Raises:
            TpuxError: mounting is not permitted.
        """
        if why := overlays.mount(self._disks):
            raise TpuxError(
                f"cannot mount a tmpfs for the workers' disks: {why}",
                where=str(self._disks),
                hint="run the emulator as an ordinary user, or with the permission to mount",
            )

    def close(self) -> None:
        """Unmount the tmpfs, which deletes the disks."""
        overlays.unmount(self._disks)

    def prepare(self, node: NodeRecord, worker: WorkerRecord) -> None:
        """Write the disk's upper layer."""
        upper, new = overlays.upper_layer(self.disk(node, worker))
        if new:
            for entry in Path("/etc/skel").glob(".*"):
                if entry.is_file():
                    shutil.copy(entry, upper / "root")
            if self._image.is_dir():
                shutil.copytree(self._image, upper, symlinks=True, dirs_exist_ok=True)
            worker_files.write(upper / "etc/hostname", worker.hostname + "\n")
            worker_files.write(upper / "etc/sudoers.d/google_sudoers", _SUDOERS, 0o440)
            self._hide_host_keys(upper)
        upper.chmod(0o755)
        metadata = self._block.metadata(worker.slot)
        for name in ("run", "tmp"):  # empty after each boot
            worker_files.wipe(upper / name)
            worker_files.opaque(upper / name, overlays.EMPTY[name])
        (upper / "run/sshd").mkdir()
        (upper / "run/lock").mkdir()
        worker_files.write(upper / "etc/hosts", worker_files.hosts(node, metadata))
        addresses = [worker.external, worker.internal]
        text = config(addresses, self.ssh_port, root_environment(metadata), Path("/etc/ssh"))
        worker_files.write(upper / "etc/ssh/sshd_config", text, 0o600)
        for name in ("init.sh", "accounts.sh", "rotate-host-key.sh"):
            worker_files.write(upper / _LIB / name, worker_files.script(name), 0o755)
        worker_files.write(upper / _LIB / "ssh-keys", worker_files.ssh_keys(node), 0o600)
        worker_files.write(upper / _LIB / "startup-script", worker_files.startup_script(node), 0o755)

    def command(self, node: NodeRecord, worker: WorkerRecord) -> list[str]:
        """Return an `unshare` command; when it ends, all processes in its namespaces end."""
        return overlays.boot_command(self.disk(node, worker), worker.hostname, self._shared)

    def pid_file(self, node: NodeRecord, worker: WorkerRecord) -> Path:
        """Return sshd's PID file, as seen from outside the worker."""
        return self.disk(node, worker) / "upper/run/sshd.pid"

    def host_key(self, node: NodeRecord, worker: WorkerRecord) -> Path:
        """Return the file of its public host key, as seen from outside the worker."""
        return self.disk(node, worker) / "upper/etc/ssh/ssh_host_ed25519_key.pub"

    def processes(self, pid: int, key: str) -> list[int]:  # noqa: ARG002
        """Return all processes in the worker's PID namespace, except its init."""
        init = processes.first_child(pid)
        return [] if init is None else [each for each in processes.in_namespace_of(init) if each != init]

    def to_kill(self, pid: int, key: str) -> list[int]:  # noqa: ARG002
        """Return the worker's init, which takes its namespace with it; or `unshare`, which ends after that."""
        return overlays.pids_to_kill(pid)

    def accounts_command(self, node: NodeRecord, worker: WorkerRecord, pid: int) -> list[str]:  # noqa: ARG002
        """Return a command that runs the accounts script in the worker."""
        return overlays.command_inside(processes.first_child(pid) or pid, "/bin/sh", f"/{_LIB}/accounts.sh")

    def sshd_command(self, node: NodeRecord, worker: WorkerRecord, pid: int) -> list[str]:  # noqa: ARG002
        """Return a command that runs sshd in the worker."""
        return overlays.command_inside(processes.first_child(pid) or pid, "/usr/sbin/sshd")

    def rotate_host_key_command(self, node: NodeRecord, worker: WorkerRecord, pid: int) -> list[str]:  # noqa: ARG002
        """Return a command that replaces the host key in the worker."""
        return overlays.command_inside(
            processes.first_child(pid) or pid, "/bin/sh", f"/{_LIB}/rotate-host-key.sh", "/etc/ssh"
        )

    def wipe(self, node: NodeRecord, worker: WorkerRecord) -> None:
        """Delete the disk."""
        worker_files.wipe(self.disk(node, worker))

    def disk(self, node: NodeRecord, worker: WorkerRecord) -> Path:
        """Return the directory of the worker's disk."""
        return self._disks / worker_key(node, worker)

    def _hide_host_keys(self, upper: Path) -> None:
        (upper / "etc/ssh").mkdir(parents=True, exist_ok=True)
        for key in Path("/etc/ssh").glob("ssh_host_*"):
            os.mknod(upper / "etc/ssh" / key.name, 0o020000, 0)  # a whiteout: character device 0/0
