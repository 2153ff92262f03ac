"""Starts, watches over and ends the workers of all nodes."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import subprocess
from collections import defaultdict
from pathlib import Path

from tpux import TpuxError
from tpux_emulator.cloud.records import NodeRecord, WorkerRecord, short_name
from tpux_emulator.workers import processes, worker_files
from tpux_emulator.workers.address_only import AddressOnlyBackend
from tpux_emulator.workers.addresses import AddressBlock
from tpux_emulator.workers.driver import MachineDriver, worker_key
from tpux_emulator.workers.metadata_server import MetadataServer

log = logging.getLogger("tpux_emulator.workers")
# How many boot at once: two for a core keep it busy while others wait for the kernel.
_MAX_CONCURRENT = 2 * (os.cpu_count() or 1)
_POLL_INTERVAL = 0.02
_TIMEOUT = 60.0
_CLEAN = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}


class SshWorkerBackend(AddressOnlyBackend):
    """Workers that are real SSH servers.

    Args:
        block: the addresses.
        machines: which kind of worker.
        metadata: their metadata server.
        prefix: how the marks of this emulator's processes begin.
    """

    def __init__(self, block: AddressBlock, driver: MachineDriver, metadata: MetadataServer, prefix: str) -> None:
        super().__init__(block)
        self._driver, self._metadata, self._prefix = driver, metadata, prefix
        self.ssh_port = driver.ssh_port
        self._pids = self._find_running(prefix)
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._slots = asyncio.Semaphore(_MAX_CONCURRENT)
        self._children: dict[int, asyncio.subprocess.Process] = {}

    async def adopt(self, nodes: list[NodeRecord]) -> None:
        """Take over the workers that an emulator before us left running, and end those that nobody knows."""
        self._driver.open()
        known = {worker_key(node, worker) for node in nodes for worker in node.workers}
        for found, pid in list(self._pids.items()):
            if found not in known:
                await self._kill(found, pid)

    async def shutdown(self, nodes: list[NodeRecord]) -> None:
        """End all workers."""
        await asyncio.gather(*(self.stop_all(node, keep_disks=True) for node in nodes))
        self._driver.close()

    async def boot(self, node: NodeRecord) -> None:
        """Start all workers of a node that do not run yet.

        Raises:
            TpuxError: one did not come up.
        """
        async with self._locks[node.name]:
            await asyncio.gather(*(self._boot(node, worker) for worker in node.workers))

    async def stop_all(self, node: NodeRecord, *, keep_disks: bool) -> None:
        """End every process on a node's workers."""
        async with self._locks[node.name]:
            await asyncio.gather(*(self._stop(node, worker, keep_disks=keep_disks) for worker in node.workers))

    async def send_notice(self, node: NodeRecord) -> None:
        """Send SIGTERM to every program on the workers; their sshd lives on, so that output still arrives."""
        for worker in node.workers:
            programs = [pid for pid in self._processes(node, worker) if processes.command_name(pid) != "sshd"]
            processes.send(programs, signal.SIGTERM)

    async def update_accounts(self, node: NodeRecord) -> None:
        """Hand running workers the node's `ssh-keys`."""
        await asyncio.gather(*(self._update_accounts(node, worker) for worker in node.workers))

    async def cut(self, node: NodeRecord, worker: WorkerRecord, how: str) -> None:
        """Freeze a worker's sshd (`hang`), end it (`refuse`), or let it go on."""
        pid = self._pids.get(worker_key(node, worker))
        if pid is None:
            return
        servers = [each for each in self._processes(node, worker) if processes.command_name(each) == "sshd"]
        if how == "hang":
            processes.send(servers, signal.SIGSTOP)
        elif how == "refuse":
            processes.send(servers, signal.SIGKILL)
        elif worker.cut == "hang":
            processes.send(servers, signal.SIGCONT)
        elif worker.cut == "refuse":
            await self._run(self._driver.sshd_command(node, worker, pid), "")

    async def rotate_host_key(self, node: NodeRecord, worker: WorkerRecord) -> None:
        """Give a worker another host key, and end the logins that it has."""
        pid = self._pids.get(worker_key(node, worker))
        if pid is None:
            return
        await self._run(self._driver.rotate_host_key_command(node, worker, pid), "")
        servers = [each for each in self._processes(node, worker) if processes.command_name(each) == "sshd"]
        processes.send(servers, signal.SIGKILL)
        await self._run(self._driver.sshd_command(node, worker, pid), "")
        worker.host_keys = self._host_keys(node, worker)

    def alive(self, node: NodeRecord, worker: WorkerRecord) -> bool:
        """Whether the worker runs."""
        pid = self._pids.get(worker_key(node, worker))
        return pid is not None and processes.exists(pid)

    async def _boot(self, node: NodeRecord, worker: WorkerRecord) -> None:
        await self._metadata.serve(node, worker)
        if self.alive(node, worker):
            return
        for address in (worker.external, worker.internal):
            _check_free(address, self._driver.ssh_port)
        async with self._slots:
            await asyncio.to_thread(self._driver.prepare, node, worker)
            process = await self._start(node, worker)
            waited, ready = 0.0, self._driver.pid_file(node, worker)
            while not ready.exists():
                if process.returncode is not None or waited > _TIMEOUT:
                    raise self._not_up(node, worker)
                await asyncio.sleep(_POLL_INTERVAL)
                waited += _POLL_INTERVAL
            worker.host_keys = self._host_keys(node, worker)

    async def _start(self, node: NodeRecord, worker: WorkerRecord) -> asyncio.subprocess.Process:
        found = worker_key(node, worker)
        console = self._console(node, worker).open("wb")
        process = await asyncio.create_subprocess_exec(
            *self._driver.command(node, worker),
            env={**_CLEAN, processes.MARKER_VARIABLE: self._prefix + found},
            stdin=subprocess.DEVNULL, stdout=console, stderr=console, start_new_session=True,
        )  # fmt: skip
        console.close()
        self._pids[found], self._children[process.pid] = process.pid, process
        return process

    def _host_keys(self, node: NodeRecord, worker: WorkerRecord) -> dict[str, str]:
        kind, key, *_ = self._driver.host_key(node, worker).read_text(encoding="utf-8").split()
        return {kind: key}

    def _console(self, node: NodeRecord, worker: WorkerRecord) -> Path:
        return self._driver.disk(node, worker) / "console"

    def _not_up(self, node: NodeRecord, worker: WorkerRecord) -> TpuxError:
        said = self._console(node, worker).read_text(encoding="utf-8", errors="replace").strip()[-500:]
        return TpuxError(
            f"worker {worker.index} of node {short_name(node.name)} did not start its SSH server on"
            f" {worker.external}:{self.ssh_port}: {said or 'it said nothing'}"
        )

    async def _stop(self, node: NodeRecord, worker: WorkerRecord, *, keep_disks: bool) -> None:
        self._metadata.leave(worker)
        if (pid := self._pids.get(worker_key(node, worker))) is not None:
            await self._kill(worker_key(node, worker), pid)
        if not keep_disks:
            await asyncio.to_thread(self._driver.wipe, node, worker)

    async def _kill(self, found: str, pid: int) -> None:
        # Again and again: a process may have had a child between our look and our signal.
        while to_kill := self._driver.to_kill(pid, found):
            processes.send(to_kill, signal.SIGKILL)
            await asyncio.sleep(_POLL_INTERVAL)
        child = self._children.pop(pid, None)
        if child is not None:
            await child.wait()
        self._pids.pop(found, None)

    def _processes(self, node: NodeRecord, worker: WorkerRecord) -> list[int]:
        pid = self._pids.get(worker_key(node, worker))
        return [] if pid is None else self._driver.processes(pid, worker_key(node, worker))

    async def _update_accounts(self, node: NodeRecord, worker: WorkerRecord) -> None:
        pid = self._pids.get(worker_key(node, worker))
        if pid is not None and not worker.cut:
            await self._run(self._driver.accounts_command(node, worker, pid), worker_files.ssh_keys(node))

    async def _run(self, command: list[str], text: str) -> None:
        async with self._slots:
            process = await asyncio.create_subprocess_exec(
                *command, env=_CLEAN, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
            )
            _, errors = await process.communicate(text.encode())
        if process.returncode:
            log.warning("%s: %s", command[0], errors.decode(errors="replace").strip())

    @staticmethod
    def _find_running(prefix: str) -> dict[str, int]:
        """The first process of each worker that is still there: it leads the session that we gave it."""
        return {
            which: pid
            for pid, which in sorted(processes.find_marked(prefix).items(), reverse=True)
            if processes.command_name(pid) in ("unshare", "sh") and processes.leads_session(pid)
        }


def _check_free(address: str, port: int) -> None:
    """Sshd itself is content with one of its addresses, so we look before.

    Raises:
        TpuxError: somebody else listens there.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError as error:
            raise TpuxError(f"a worker's SSH server cannot listen on {address}:{port}: {error.strerror}") from error
