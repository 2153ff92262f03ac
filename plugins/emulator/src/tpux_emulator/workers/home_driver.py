"""Workers for an ordinary user: a home directory each, and an sshd that runs as this user."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tpux_emulator.cloud.records import NodeRecord, WorkerRecord
from tpux_emulator.paths import Home
from tpux_emulator.workers import processes, worker_files
from tpux_emulator.workers.addresses import AddressBlock
from tpux_emulator.workers.driver import worker_key
from tpux_emulator.workers.sshd import config, find_sshd


class HomeDriver:
    """The machine driver for workers with a home directory each.

    Args:
        home: the emulator's directory.
        block: the emulator's addresses.
        ssh_port: the port of the workers' sshd.
        prefix: the beginning of the markers of this emulator's processes.
    """

    metadata_port = 8480

    def __init__(self, home: Home, block: AddressBlock, ssh_port: int, prefix: str) -> None:
        self._disks, self._block, self.ssh_port, self._prefix = home.workers, block, ssh_port, prefix
        self.shared = str(home.shared)

    def open(self) -> None:
        """Create the directory of the disks."""
        self._disks.mkdir(mode=0o700, exist_ok=True)

    def close(self) -> None:
        """Keep the disks."""

    def prepare(self, node: NodeRecord, worker: WorkerRecord) -> None:
        """Create the home directory, the host key and the configuration."""
        disk = self.disk(node, worker)
        for part in ("home", "etc"):
            (disk / part).mkdir(parents=True, exist_ok=True)
        etc = disk / "etc"
        for entry in Path("/etc/skel").glob(".*"):
            if entry.is_file() and not (disk / "home" / entry.name).exists():
                shutil.copy(entry, disk / "home")
        key = etc / "ssh_host_ed25519_key"
        if not key.exists():
            subprocess.run(
                ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", worker.hostname, "-f", key], check=True
            )
        (etc / "sshd.pid").unlink(missing_ok=True)
        worker_files.write(etc / "session.sh", worker_files.script("session.sh"), 0o755)
        worker_files.write(etc / "startup-script", worker_files.startup_script(node), 0o755)
        keys = [line.partition(":")[2] for line in worker_files.ssh_keys(node).splitlines()]
        worker_files.write(etc / "authorized_keys", "\n".join(keys) + "\n", 0o600)
        metadata = f"{self._block.metadata(worker.slot)}:{self.metadata_port}"
        environment = {
            "HOME": str(disk / "home"),
            "TPUX_MACHINE_DIR": str(etc),  # the workers share the machine's own directories
            "GCE_METADATA_HOST": metadata,
            "GCE_METADATA_IP": metadata,
            processes.MARKER_VARIABLE: self._prefix + worker_key(node, worker),
        }
        addresses = [worker.external, worker.internal]
        text = config(addresses, self.ssh_port, environment, etc, forced=etc / "session.sh")
        worker_files.write(etc / "sshd_config", text, 0o600)

    def command(self, node: NodeRecord, worker: WorkerRecord) -> list[str]:
        """Return a shell that runs sshd and the startup script."""
        etc = self.disk(node, worker) / "etc"
        run = (
            'export HOME="$2/home"; if [ -s "$2/etc/startup-script" ]; then'
            ' (cd "$HOME" && exec "$2/etc/startup-script") > "$2/startup-script.log" 2>&1 & fi;'
            ' "$1" -D -f "$2/etc/sshd_config" & while :; do sleep 2147483647 & wait $!; done'
        )
        return ["/bin/sh", "-c", run, "worker", find_sshd(), str(etc.parent)]

    def pid_file(self, node: NodeRecord, worker: WorkerRecord) -> Path:
        """Return sshd's PID file."""
        return self.disk(node, worker) / "etc/sshd.pid"

    def host_key(self, node: NodeRecord, worker: WorkerRecord) -> Path:
        """Return the file of its public host key."""
        return self.disk(node, worker) / "etc/ssh_host_ed25519_key.pub"

    def processes(self, pid: int, key: str) -> list[int]:
        """Return the worker's sshd, all processes with its marker, and their descendants."""
        marked = [each for each, rest in processes.find_marked(self._prefix + key).items() if not rest]
        known = [*marked, *processes.sshd_configured_in(self._disks / key)]
        return [each for each in {*known, *processes.descendants(known)} if each != pid]

    def to_kill(self, pid: int, key: str) -> list[int]:
        """Return all processes of the worker."""
        return [each for each in [*self.processes(pid, key), pid] if processes.exists(each)]

    def accounts_command(self, node: NodeRecord, worker: WorkerRecord, pid: int) -> list[str]:  # noqa: ARG002
        """Return a command that replaces the user's authorized keys."""
        keys = self.disk(node, worker) / "etc/authorized_keys"
        run = 'umask 077; cut -d: -f2- > "$1.new" && mv "$1.new" "$1"'
        return ["/bin/sh", "-c", run, "accounts", str(keys)]

    def sshd_command(self, node: NodeRecord, worker: WorkerRecord, pid: int) -> list[str]:  # noqa: ARG002
        """Return the sshd command."""
        return [find_sshd(), "-f", str(self.disk(node, worker) / "etc/sshd_config")]

    def rotate_host_key_command(self, node: NodeRecord, worker: WorkerRecord, pid: int) -> list[str]:  # noqa: ARG002
        """Return a command that replaces the host key."""
        return [
            "/bin/sh",
            "-c",
            worker_files.script("rotate-host-key.sh"),
            "rotate-host-key.sh",
            str(self.disk(node, worker) / "etc"),
        ]

    def wipe(self, node: NodeRecord, worker: WorkerRecord) -> None:
        """Delete the disk."""
        worker_files.wipe(self.disk(node, worker))

    def disk(self, node: NodeRecord, worker: WorkerRecord) -> Path:
        """Return the directory of the worker's disk."""
        return self._disks / worker_key(node, worker)
