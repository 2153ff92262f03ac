"""The worker backend that starts and stops real SSH servers."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import subprocess
import time
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
# How many workers boot at once: with two per core, one uses the CPU while the other waits for the kernel.
_MAX_CONCURRENT = 2 * (os.cpu_count() or 1)
_POLL_INTERVAL = 0.02
_BOOT_TIMEOUT = 60.0
_ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}


class SshWorkerBackend(AddressOnlyBackend):
    """Runs workers as processes with their own sshd.

    Args:
        block: the emulator's addresses.
        driver: the kind of worker.
        metadata: the metadata server.
        prefix: the beginning of the markers of this emulator's processes.
    """

    def __init__(self, block: AddressBlock, driver: MachineDriver, metadata: MetadataServer, prefix: str) -> None:
        super().__init__(block)
        self._driver, self._metadata, self._prefix = driver, metadata, prefix
        self.ssh_port, self.shared = driver.ssh_port, driver.shared
        self._pids = _find_running(prefix)
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._slots = asyncio.Semaphore(_MAX_CONCURRENT)
        self._children: dict[int, asyncio.subprocess.Process] = {}

    async def adopt(self, nodes: list[NodeRecord]) -> None:
        """Take over the workers that a previous emulator process left running; stop those of no known node."""
        self._driver.open()
        known = {worker_key(node, worker) for node in nodes for worker in node.workers}
        for key, pid in list(self._pids.items()):
            if key not in known:
                await self._kill(key, pid)

    async def shutdown(self, nodes: list[NodeRecord]) -> None:
        """Stop all workers."""
        await asyncio.gather(*(self.stop_all(node, keep_disks=True) for node in nodes))
        self._driver.close()

    async def boot(self, node: NodeRecord) -> None:
        """Start the workers of a node that do not run yet, and set their `host_keys`.

        Raises:
            TpuxError: a worker did not start.
        """
        async with self._locks[node.name]:
            await asyncio.gather(*(self._boot(node, worker) for worker in node.workers))

    async def stop_all(self, node: NodeRecord, *, keep_disks: bool) -> None:
        """Kill every process on a node's workers; without `keep_disks`, delete their disks too."""
        async with self._locks[node.name]:
            await asyncio.gather(*(self._stop(node, worker, keep_disks=keep_disks) for worker in node.workers))

    async def send_notice(self, node: NodeRecord) -> None:
        """Send SIGTERM to every program on the workers except sshd, so that output still arrives."""
        for worker in node.workers:
            programs = [pid for pid in self._processes(node, worker) if processes.command_name(pid) != "sshd"]
            processes.send(programs, signal.SIGTERM)

    async def update_accounts(self, node: NodeRecord) -> None:
        """Update the accounts of running workers from the node's `ssh-keys`."""
        await asyncio.gather(*(self._update_accounts(node, worker) for worker in node.workers))

    async def cut(self, node: NodeRecord, worker: WorkerRecord, how: str) -> None:
        """Freeze a worker's sshd (`hang`) or kill it (`refuse`); an empty `how` undoes that."""
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
            await self._restart_sshd(node, worker, pid)

    async def rotate_host_key(self, node: NodeRecord, worker: WorkerRecord) -> None:
        """Replace a worker's host key and close its SSH connections."""
        pid = self._pids.get(worker_key(node, worker))
        if pid is None:
            return
        await self._run(self._driver.rotate_host_key_command(node, worker, pid), "")
        await self._restart_sshd(node, worker, pid)
        worker.host_keys = self._host_keys(node, worker)

    async def reboot(self, node: NodeRecord, worker: WorkerRecord) -> None:
        """Kill a worker's processes and start it again with its disk."""
        async with self._locks[node.name]:
            await self._stop(node, worker, keep_disks=True)
            await self._boot(node, worker)

    async def _restart_sshd(self, node: NodeRecord, worker: WorkerRecord, pid: int) -> None:
        """Kill a worker's SSH server, start a new one, and wait until it answers."""
        deadline = time.monotonic() + _BOOT_TIMEOUT
        # It must be gone first: a new server exits if its address is still in use.
        while servers := [
            each
            for each in self._processes(node, worker)
            if processes.command_name(each) == "sshd" and processes.exists(each)
        ]:
            processes.send(servers, signal.SIGKILL)
            await asyncio.sleep(_POLL_INTERVAL)
        await self._run(self._driver.sshd_command(node, worker, pid), "")
        while not await _answers(worker.external, self._driver.ssh_port) and self.alive(node, worker):
            if time.monotonic() > deadline:
                raise TpuxError(f"the SSH server on {worker.external}:{self.ssh_port} does not answer")
            await asyncio.sleep(_POLL_INTERVAL)

    def alive(self, node: NodeRecord, worker: WorkerRecord) -> bool:
        """Return True if the worker runs."""
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
                if process.returncode is not None or waited > _BOOT_TIMEOUT:
                    raise self._boot_error(node, worker)
                await asyncio.sleep(_POLL_INTERVAL)
                waited += _POLL_INTERVAL
            worker.host_keys = self._host_keys(node, worker)

    async def _start(self, node: NodeRecord, worker: WorkerRecord) -> asyncio.subprocess.Process:
        key = worker_key(node, worker)
        console = self._console(node, worker).open("wb")
        process = await asyncio.create_subprocess_exec(
            *self._driver.command(node, worker),
            env={**_ENVIRONMENT, processes.MARKER_VARIABLE: self._prefix + key},
            stdin=subprocess.DEVNULL, stdout=console, stderr=console, start_new_session=True,
        )  # fmt: skip
        console.close()
        self._pids[key], self._children[process.pid] = process.pid, process
        return process

    def _host_keys(self, node: NodeRecord, worker: WorkerRecord) -> dict[str, str]:
        kind, key, *_ = self._driver.host_key(node, worker).read_text(encoding="utf-8").split()
        return {kind: key}

    def _console(self, node: NodeRecord, worker: WorkerRecord) -> Path:
        return self._driver.disk(node, worker) / "console"

    def _boot_error(self, node: NodeRecord, worker: WorkerRecord) -> TpuxError:
        output = self._console(node, worker).read_text(encoding="utf-8", errors="replace").strip()[-500:]
        return TpuxError(
            f"worker {worker.index} of node {short_name(node.name)} did not start its SSH server on"
            f" {worker.external}:{self.ssh_port}: {output or 'no output'}"
        )

    async def _stop(self, node: NodeRecord, worker: WorkerRecord, *, keep_disks: bool) -> None:
        self._metadata.stop(worker)
        if (pid := self._pids.get(worker_key(node, worker))) is not None:
            await self._kill(worker_key(node, worker), pid)
        if not keep_disks:
            await asyncio.to_thread(self._driver.wipe, node, worker)

    async def _kill(self, key: str, pid: int) -> None:
        # Repeated, because a process may start a child before the signal reaches it.
        while pids := self._driver.to_kill(pid, key):
            processes.send(pids, signal.SIGKILL)
            await asyncio.sleep(_POLL_INTERVAL)
        child = self._children.pop(pid, None)
        if child is not None:
            await child.wait()
        self._pids.pop(key, None)

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
                *command, env=_ENVIRONMENT, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
            )
            _, errors = await process.communicate(text.encode())
        if process.returncode:
            log.warning("%s: %s", command[0], errors.decode(errors="replace").strip())


def _find_running(prefix: str) -> dict[str, int]:
    """Return the first process of each worker that is still running, by the worker's key. It is a session leader."""
    return {
        key: pid
        for pid, key in sorted(processes.find_marked(prefix).items(), reverse=True)
        if processes.command_name(pid) in ("unshare", "sh") and processes.leads_session(pid)
    }


async def _answers(address: str, port: int) -> bool:
    """Return True if an SSH server sends its banner."""
    try:
        reader, writer = await asyncio.open_connection(address, port)
    except OSError:
        return False
    try:
        return (await asyncio.wait_for(reader.readline(), 1.0)).startswith(b"SSH-")
    except (TimeoutError, OSError):
        return False
    finally:
        writer.close()


def _check_free(address: str, port: int) -> None:
    """Check that an address is free, since sshd starts even if only one of its addresses is.

    Raises:
        TpuxError: another process listens on it.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError as error:
            raise TpuxError(f"a worker's SSH server cannot listen on {address}:{port}: {error.strerror}") from error
