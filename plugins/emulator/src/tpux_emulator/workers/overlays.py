"""Root file systems of workers and pods: an overlay over this machine's, in namespaces of its own. Needs root."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tpux_emulator.workers import processes, worker_files

# Empty on a new disk, whatever they contain on this machine: its user's files must not be visible there.
EMPTY = {"home": 0o755, "root": 0o700, "tmp": 0o1777, "run": 0o755, "var/tmp": 0o1777}
SHARED = "/mnt/shared"


def mount(disks: Path) -> str:
    """Mount a tmpfs for disks, since an overlay cannot lie on what it covers; return why it is not permitted.

    A killed emulator may have left it mounted.
    """
    disks.mkdir(mode=0o700, exist_ok=True)
    if disks.is_mount():
        return ""
    command = ["mount", "-t", "tmpfs", "-o", "mode=700,size=75%", "tpux-emulator", str(disks)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    return mounted.stderr.strip() or "mount failed" if mounted.returncode else ""


def unmount(disks: Path) -> None:
    """Unmount the tmpfs, which deletes the disks."""
    subprocess.run(["umount", "--lazy", str(disks)], capture_output=True, check=False)


def upper_layer(disk: Path) -> tuple[Path, bool]:
    """Return the layer of a disk that is its own, and whether it is new, without anything of this machine's users."""
    upper, new = disk / "upper", not disk.exists()
    for part in (upper, disk / "work", disk / "root"):
        part.mkdir(parents=True, exist_ok=True)
    for name, mode in EMPTY.items() if new else ():
        worker_files.opaque(upper / name, mode)
    upper.chmod(0o755)
    return upper, new


def boot_command(disk: Path, hostname: str, shared: Path) -> list[str]:
    """Return an `unshare` command; when it ends, all processes in its namespaces end."""
    boot = ["/bin/sh", "-c", worker_files.script("boot.sh"), "boot.sh", str(disk), hostname, str(shared), SHARED]
    return ["unshare", "--mount", "--uts", "--pid", "--fork", "--kill-child", *boot]


def command_inside(init: int, *command: str) -> list[str]:
    """Return a command in the namespaces of the first process that `boot_command` has started in them."""
    return ["nsenter", "--target", str(init), "--mount", "--uts", "--pid", "--root", "--wd=/", *command]


def pids_to_kill(pid: int) -> list[int]:
    """Return the init, which takes its namespace with it; or `unshare`, which ends after that."""
    return [processes.first_child(pid) or pid] if processes.exists(pid) else []
