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
from tpux_emulator.cloud.names import short
from tpux_emulator.cloud.records import NodeRecord, WorkerRecord
from tpux_emulator.workers import disks, processes
from tpux_emulator.workers.addresses import Block
from tpux_emulator.workers.homes import mark
from tpux_emulator.workers.machines import Machines
from tpux_emulator.workers.metadata_server import MetadataServer
from tpux_emulator.workers.paper import PaperFleet

log = logging.getLogger("tpux_emulator.workers")
# How many boot at once: two for a core keep it busy while others wait for the kernel.
_AT_ONCE = 2 * (os.cpu_count() or 1)
_LOOK = 0.02
_PATIENCE = 60.0
_CLEAN = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}


class SshFleet(PaperFleet):
    """Workers that are real SSH servers.

    Args:
        block: the addresses.
        machines: which kind of worker.
        metadata: their metadata server.
        prefix: how the marks of this emulator's processes begin.
    """

    def __init__(self, block: Block, machines: Machines, metadata: MetadataServer, prefix: str) -> None:
        super().__init__(block)
        self._machines, self._metadata, self._prefix = machines, metadata, prefix
        self.ssh_port = machines.ssh_port
        self._pids = self._survivors(prefix)
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self._children: dict[int, asyncio.subprocess.Process] = {}

    async def open(self, nodes: list[NodeRecord]) -> None:
        """Take over the workers that an emulator before us left running, and end those that nobody knows."""
        self._machines.open()
        known = {mark(node, worker) for node in nodes for worker in node.workers}
        for found, pid in list(self._pids.items()):
            if found not in known:
                await self._kill(found, pid)

    async def close(self, nodes: list[NodeRecord]) -> None:
        """End all workers."""
        await asyncio.gather(*(self.halt(node, keep_disks=True) for node in nodes))
        self._machines.close()

    async def boot(self, node: NodeRecord) -> None:
        """Start all workers of a node that do not run yet.

        Raises:
            TpuxError: one did not come up.
        """
        async with self._locks[node.name]:
            await asyncio.gather(*(self._boot(node, worker) for worker in node.workers))

    async def halt(self, node: NodeRecord, *, keep_disks: bool) -> None:
        """End every process on a node's workers."""
        async with self._locks[node.name]:
            await asyncio.gather(*(self._halt(node, worker, keep_disks=keep_disks) for worker in node.workers))

    async def warn(self, node: NodeRecord) -> None:
        """Send SIGTERM to every program on the workers; their sshd lives on, so that output still arrives."""
        for worker in node.workers:
            programs = [pid for pid in self._processes(node, worker) if processes.command_name(pid) != "sshd"]
            processes.send(programs, signal.SIGTERM)

    async def update_accounts(self, node: NodeRecord) -> None:
        """Hand running workers the node's `ssh-keys`."""
        await asyncio.gather(*(self._update_accounts(node, worker) for worker in node.workers))

    async def cut(self, node: NodeRecord, worker: WorkerRecord, how: str) -> None:
        """Freeze a worker's sshd (`hang`), end it (`refuse`), or let it go on."""
        pid = self._pids.get(mark(node, worker))
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
            await self._run(self._machines.sshd_command(node, worker, pid), "")

    async def rekey(self, node: NodeRecord, worker: WorkerRecord) -> None:
        """Give a worker another host key, and end the logins that it has."""
        pid = self._pids.get(mark(node, worker))
        if pid is None:
            return
        await self._run(self._machines.rekey_command(node, worker, pid), "")
        servers = [each for each in self._processes(node, worker) if processes.command_name(each) == "sshd"]
        processes.send(servers, signal.SIGKILL)
        await self._run(self._machines.sshd_command(node, worker, pid), "")
        worker.host_keys = self._host_keys(node, worker)

    def alive(self, node: NodeRecord, worker: WorkerRecord) -> bool:
        """Whether the worker runs."""
        pid = self._pids.get(mark(node, worker))
        return pid is not None and processes.exists(pid)

    async def _boot(self, node: NodeRecord, worker: WorkerRecord) -> None:
        await self._metadata.serve(node, worker)
        if self.alive(node, worker):
            return
        for address in (worker.external, worker.internal):
            _check_free(address, self._machines.ssh_port)
        async with self._turns:
            await asyncio.to_thread(self._machines.prepare, node, worker)
            process = await self._start(node, worker)
            waited, ready = 0.0, self._machines.pid_file(node, worker)
            while not ready.exists():
                if process.returncode is not None or waited > _PATIENCE:
                    raise self._not_up(node, worker)
                await asyncio.sleep(_LOOK)
                waited += _LOOK
            worker.host_keys = self._host_keys(node, worker)

    async def _start(self, node: NodeRecord, worker: WorkerRecord) -> asyncio.subprocess.Process:
        found = mark(node, worker)
        console = self._console(node, worker).open("wb")
        process = await asyncio.create_subprocess_exec(
            *self._machines.command(node, worker),
            env={**_CLEAN, processes.MARK: self._prefix + found},
            stdin=subprocess.DEVNULL, stdout=console, stderr=console, start_new_session=True,
        )  # fmt: skip
        console.close()
        self._pids[found], self._children[process.pid] = process.pid, process
        return process

    def _host_keys(self, node: NodeRecord, worker: WorkerRecord) -> dict[str, str]:
        kind, key, *_ = self._machines.host_key(node, worker).read_text(encoding="utf-8").split()
        return {kind: key}

    def _console(self, node: NodeRecord, worker: WorkerRecord) -> Path:
        return self._machines.disk(node, worker) / "console"

    def _not_up(self, node: NodeRecord, worker: WorkerRecord) -> TpuxError:
        said = self._console(node, worker).read_text(encoding="utf-8", errors="replace").strip()[-500:]
        return TpuxError(
            f"worker {worker.index} of node {short(node.name)} did not start its SSH server on"
            f" {worker.external}:{self.ssh_port}: {said or 'it said nothing'}"
        )

    async def _halt(self, node: NodeRecord, worker: WorkerRecord, *, keep_disks: bool) -> None:
        self._metadata.leave(worker)
        if (pid := self._pids.get(mark(node, worker))) is not None:
            await self._kill(mark(node, worker), pid)
        if not keep_disks:
            await asyncio.to_thread(self._machines.wipe, node, worker)

    async def _kill(self, found: str, pid: int) -> None:
        # Again and again: a process may have had a child between our look and our signal.
        while victims := self._machines.victims(pid, found):
            processes.send(victims, signal.SIGKILL)
            await asyncio.sleep(_LOOK)
        child = self._children.pop(pid, None)
        if child is not None:
            await child.wait()
        self._pids.pop(found, None)

    def _processes(self, node: NodeRecord, worker: WorkerRecord) -> list[int]:
        pid = self._pids.get(mark(node, worker))
        return [] if pid is None else self._machines.processes(pid, mark(node, worker))

    async def _update_accounts(self, node: NodeRecord, worker: WorkerRecord) -> None:
        pid = self._pids.get(mark(node, worker))
        if pid is not None and not worker.cut:
            await self._run(self._machines.accounts_command(node, worker, pid), disks.ssh_keys(node))

    async def _run(self, command: list[str], text: str) -> None:
        async with self._turns:
            process = await asyncio.create_subprocess_exec(
                *command, env=_CLEAN, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
            )
            _, errors = await process.communicate(text.encode())
        if process.returncode:
            log.warning("%s: %s", command[0], errors.decode(errors="replace").strip())

    @staticmethod
    def _survivors(prefix: str) -> dict[str, int]:
        """The first process of each worker that is still there: it leads the session that we gave it."""
        return {
            which: pid
            for pid, which in sorted(processes.marked(prefix).items(), reverse=True)
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
