"""The processes of pods: a home directory each, or an overlay of this machine's files in namespaces of its own."""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tpux_emulator.kubernetes.objects import Pod
from tpux_emulator.paths import Home
from tpux_emulator.workers import overlays, processes, worker_files

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_TOOLS = ("unshare", "nsenter", "mount", "pivot_root")
_POLL_INTERVAL = 0.02


@dataclass
class _Running:
    process: asyncio.subprocess.Process
    environment: dict[str, str]
    own_root: bool


class PodProcesses:
    """Starts the containers of pods, and commands in them.

    A pod's processes are found by a marker in their environment, or by their PID namespace, never by stored ids.

    Args:
        home: the emulator's directory.
        own_root: whether pods have a root file system each, which needs root.
    """

    def __init__(self, home: Home, *, own_root: bool) -> None:
        self._disks, self._shared = home.pods, home.shared
        self._own_root = own_root and os.geteuid() == 0 and all(shutil.which(tool) for tool in _TOOLS)
        self._prefix = f"{home.path}|pod|"
        self._running: dict[str, _Running] = {}

    def open(self) -> None:
        """Create the directory of the disks; with overlays, a tmpfs, since an overlay cannot lie on what it covers.

        The pods that a killed emulator left running are killed.
        """
        processes.send(list(processes.find_marked(self._prefix)), signal.SIGKILL)
        _delete_disks(self._disks)
        self._disks.mkdir(mode=0o700, exist_ok=True)
        self._own_root = self._own_root and not overlays.mount(self._disks)

    async def close(self) -> None:
        """Kill all pods, and delete their disks."""
        await asyncio.gather(*(self.kill(uid) for uid in list(self._running)))
        _delete_disks(self._disks)

    async def start(self, pod: Pod, environment: dict[str, str], hosts: str) -> asyncio.subprocess.Process:
        """Start a pod's container: its command is the first process.

        Args:
            pod: the pod.
            environment: of the container, in addition to that of its spec.
            hosts: with a root of its own, its /etc/hosts.

        Raises:
            OSError: there is no such command.
        """
        container, disk = pod.spec.containers[0], self._disks / pod.uid
        command = [*container.command, *container.args] or ["sleep", "infinity"]
        marker = {processes.MARKER_VARIABLE: self._prefix + pod.uid}
        variables = {"PATH": _PATH, "HOME": "/root", **environment}
        if self._own_root:
            command = self._boot(pod, disk, command, variables, hosts)
            where, first = None, {"PATH": _PATH, **marker}
        else:
            for part in ("home", "machine"):
                (disk / part).mkdir(parents=True, exist_ok=True)
            variables |= {"HOME": str(disk / "home"), "TPUX_MACHINE_DIR": str(disk / "machine"), **marker}
            where, first = disk / "home", variables
        with (disk / "console").open("ab") as console:
            process = await asyncio.create_subprocess_exec(
                *command, cwd=where, env=first, stdin=subprocess.DEVNULL, stdout=console, stderr=console,
                start_new_session=True,
            )  # fmt: skip
        self._running[pod.uid] = _Running(process, variables, self._own_root)
        while self._own_root and not (disk / "upper/run/started").exists() and process.returncode is None:
            await asyncio.sleep(_POLL_INTERVAL)
        return process

    async def execute(self, uid: str, command: list[str], *, stdin: bool) -> asyncio.subprocess.Process:
        """Start a command in a running pod.

        Raises:
            OSError: there is no such command.
            KeyError: the pod does not run.
        """
        running = self._running[uid]
        environment, where = running.environment, None
        if running.own_root:
            settings = [f"{key}={value}" for key, value in environment.items()]
            command = overlays.command_inside(
                processes.first_child(running.process.pid) or 0, "env", "-i", *settings, *command
            )
        else:
            where = Path(environment["HOME"])
        return await asyncio.create_subprocess_exec(
            *command, cwd=where, env=environment, stdin=subprocess.PIPE if stdin else subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip

    def runs(self, uid: str) -> bool:
        """Return whether the pod's container runs."""
        return uid in self._running and self._running[uid].process.returncode is None

    def terminate(self, uid: str) -> None:
        """Send SIGTERM to the pod's first process."""
        if (running := self._running.get(uid)) is None:
            return
        pid = running.process.pid
        first = processes.first_child(pid) if running.own_root else pid
        processes.send([first] if first else [], signal.SIGTERM)

    async def kill(self, uid: str) -> None:
        """Kill every process of a pod. Repeated, because a process may start a child before the signal reaches it."""
        if (running := self._running.get(uid)) is None:
            return
        while pids := self._to_kill(uid, running):
            processes.send(pids, signal.SIGKILL)
            await asyncio.sleep(_POLL_INTERVAL)
        await running.process.wait()

    async def forget(self, uid: str) -> None:
        """Kill every process of a pod, and delete its disk."""
        await self.kill(uid)
        self._running.pop(uid, None)
        await asyncio.to_thread(worker_files.wipe, self._disks / uid)

    def console(self, uid: str) -> bytes:
        """Return what the pod's first process has written."""
        path = self._disks / uid / "console"
        return path.read_bytes() if path.exists() else b""

    def _to_kill(self, uid: str, running: _Running) -> list[int]:
        pid = running.process.pid
        if running.own_root:
            return overlays.pids_to_kill(pid)
        marked = [each for each, rest in processes.find_marked(self._prefix + uid).items() if not rest]
        known = {pid, *marked, *processes.descendants([pid, *marked])}
        return [each for each in known if processes.exists(each)]

    def _boot(self, pod: Pod, disk: Path, command: list[str], variables: dict[str, str], hosts: str) -> list[str]:
        """Write the pod's own layer, and return the command that boots it; its init is the container's command."""
        upper, new = overlays.upper_layer(disk)
        for mount in pod.spec.containers[0].volume_mounts:
            if new and not mount.mount_path.startswith(("/dev", "/proc", "/sys")):
                worker_files.opaque(upper / mount.mount_path.strip("/"), 0o777)
        (upper / "run/started").unlink(missing_ok=True)
        worker_files.write(upper / "etc/hosts", hosts)
        settings = " ".join(shlex.quote(f"{key}={value}") for key, value in variables.items())
        init = f"cd /; rmdir /.host; : > /run/started\nexec env -i {settings} {shlex.join(command)}\n"
        worker_files.write(upper / "usr/lib/tpux-emulator/init.sh", init, 0o700)
        return overlays.boot_command(disk, pod.spec.hostname or pod.name, self._shared)


def _delete_disks(disks: Path) -> None:
    if disks.is_mount():
        overlays.unmount(disks)
    worker_files.wipe(disks)
