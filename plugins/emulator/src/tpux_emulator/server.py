"""Runs an emulator: lock, state, HTTP server, scheduler, workers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import portalocker
import uvicorn
from pydantic import BaseModel, JsonValue
from starlette.requests import Request
from starlette.routing import Route

from tpux import TpuxError
from tpux_emulator.api.app import application
from tpux_emulator.api.control import PREFIX, Control, with_errors
from tpux_emulator.api.exchanges import ExchangeLog
from tpux_emulator.api.middleware import Connection
from tpux_emulator.clock import Clock, rate_from_environment
from tpux_emulator.cloud import node_state
from tpux_emulator.cloud.catalog import load_catalog
from tpux_emulator.cloud.cloud import Cloud
from tpux_emulator.cloud.scenario import Scenario
from tpux_emulator.cloud.scheduler import Scheduler
from tpux_emulator.cloud.store import Store
from tpux_emulator.log import log_to
from tpux_emulator.paths import Home
from tpux_emulator.protojson import JsonObject
from tpux_emulator.workers.address_only import AddressOnlyBackend
from tpux_emulator.workers.addresses import AddressBlock, claim_block
from tpux_emulator.workers.select_backend import find_ssh_port, kill_leftovers, select_backend
from tpux_emulator.workers.worker_files import wipe, write_private

log = logging.getLogger("tpux_emulator")
HOST = "127.0.0.1"


@dataclass(frozen=True)
class Options:
    """The options of an emulator.

    Args:
        port: the API's port on 127.0.0.1; 0 selects a free one.
        workers: whether nodes have real workers.
        ssh_port: the workers' SSH port; None selects 22 if it can be bound, else 2222.
        scenario: a scenario to start with.
        kubernetes: the port of the Kubernetes API on 127.0.0.1; 0 selects a free one, None means: no such API.
        tls: whether the Kubernetes API has TLS, with a CA of its own.
        pod_roots: whether its pods have a root file system each, where this machine permits it.
    """

    port: int
    workers: bool = True
    ssh_port: int | None = None
    scenario: Scenario | None = None
    kubernetes: int | None = None
    tls: bool = False
    pod_roots: bool = False


class ServerState(BaseModel):
    """The clock and the address block, which an emulator keeps across restarts."""

    anchor: float
    base: float
    rate: float
    block: int


def run(home: Home, options: Options, ready: Callable[[str], None]) -> None:
    """Run an emulator until it is told to stop.

    Args:
        home: its directory.
        options: its options.
        ready: called with its URL when it listens.

    Raises:
        TpuxError: another emulator runs in this directory, the port is in use, the state cannot be read, or this
            machine cannot run workers.
    """
    os.umask(0o022)  # files on the disks of workers must be readable to their users
    home.make()
    with locked(home), _listener(options.port) as listener, log_to(home.log):
        store = Store(home.state)
        saved = store.load("server", ServerState).get("")
        # Workers of the last run have their addresses still; without workers any block serves.
        block, held = claim_block(str(home.path), saved.block if saved and options.workers else None)
        with held:
            clock = _clock(saved)
            state = ServerState(anchor=clock.anchor, base=clock.base, rate=clock.rate, block=block.number)
            store.put("server", "", state)
            asyncio.run(_serve(home, options, store, clock, block, listener, ready))
        store.close()


def _clock(saved: ServerState | None) -> Clock:
    """Return a clock that continues the emulated time of the last run, at the current rate."""
    rate, now = rate_from_environment(), time.time()
    if saved is None:
        return Clock(rate, now, now)
    before = Clock(saved.rate, saved.anchor, saved.base)
    return before if rate == saved.rate else Clock(rate, now, before.now())


@contextlib.contextmanager
def locked(home: Home) -> Iterator[None]:
    """Hold the emulator's lock.

    Raises:
        TpuxError: another emulator holds it.
    """
    with Path(home.lock).open("a", encoding="utf-8") as file:
        _lock(home, file)
        try:
            yield
        finally:
            portalocker.unlock(file)


def _lock(home: Home, file: TextIO) -> None:
    try:
        portalocker.lock(file, portalocker.LockFlags.EXCLUSIVE | portalocker.LockFlags.NON_BLOCKING)
    except portalocker.LockException as error:
        raise TpuxError(
            "an emulator is already running in this directory",
            where=str(home.path),
            hint="`tpux emulator status` shows it; run another one with `--home DIR`",
        ) from error


@contextlib.contextmanager
def _listener(port: int) -> Iterator[socket.socket]:
    # asyncio disables Nagle's algorithm only if the protocol is given; with it, each answer takes 40 ms.
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((HOST, port))
        except (OSError, OverflowError) as error:
            raise TpuxError(
                f"cannot listen on {HOST}:{port}: {getattr(error, 'strerror', None) or error}",
                hint="choose another port with `--port`; `--port 0` selects a free one",
            ) from error
        yield listener


class _Server(uvicorn.Server):
    """A uvicorn server without signal handlers, which would end the process before its workers."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture no signals."""
        yield


async def _serve(
    home: Home,
    options: Options,
    store: Store,
    clock: Clock,
    block: AddressBlock,
    listener: socket.socket,
    ready: Callable[[str], None],
) -> None:
    cloud = Cloud(store, clock, load_catalog(), AddressOnlyBackend(block))
    if options.workers:
        cloud.backend = select_backend(home, block, find_ssh_port(options.ssh_port, block.probe), cloud)
    cloud.backend.use_slot_counter(lambda: cloud.next_number("slots") - 1)
    exchanges = ExchangeLog()
    port: int = listener.getsockname()[1]
    info: JsonObject = {"pid": os.getpid(), "url": f"http://{HOST}:{port}", "home": str(home.path)}
    info |= {"clock_rate": clock.rate, "workers": options.workers, "ssh_port": cloud.backend.ssh_port}
    info["shared"] = cloud.backend.shared

    def stop() -> None:
        server.should_exit = True

    control = Control(cloud, exchanges, stop, info)
    async with _kubernetes(home, options, cloud, block, exchanges, info) as routes:
        app = application(cloud, exchanges, [*control.routes(), *routes])
        config = uvicorn.Config(
            app, http=Connection, lifespan="off", log_config=None, access_log=False, proxy_headers=False,
            server_header=False, timeout_graceful_shutdown=1,
        )  # fmt: skip
        server = _Server(config)
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop)
        if options.scenario is not None:
            options.scenario.apply(cloud)
        await node_state.restore_workers(cloud)
        scheduler = asyncio.create_task(Scheduler(cloud).run())
        listener.listen(2048)
        write_private(home.server, json.dumps(info))
        log.info("listening on %s", info["url"])
        ready(str(info["url"]))
        try:
            await server.serve(sockets=[listener])
        finally:
            scheduler.cancel()
            await cloud.backend.shutdown(list(cloud.nodes.values()))
            log.info("stopped")


@contextlib.asynccontextmanager
async def _kubernetes(
    home: Home, options: Options, cloud: Cloud, block: AddressBlock, exchanges: ExchangeLog, info: JsonObject
) -> AsyncIterator[list[Route]]:
    """Serve the Kubernetes API, if it is wanted, and give the emulator's own routes for it."""
    if options.kubernetes is None:
        yield [
            Route(f"{PREFIX}/kubernetes{{rest:path}}", with_errors(_no_kubernetes), methods=["GET", "POST", "PATCH"])
        ]
        return
    from tpux_emulator.kubernetes.service import KubernetesService  # WebSockets are needed only here

    service = KubernetesService(
        home, cloud, exchanges, lambda: block.external(cloud.next_number("slots") - 1),
        tls=options.tls, pod_roots=options.pod_roots,
    )  # fmt: skip
    with _listener(options.kubernetes) as listener:
        url = f"{'https' if options.tls else 'http'}://{HOST}:{listener.getsockname()[1]}"
        info["kubernetes"] = url
        server = _Server(service.config(url))
        listener.listen(2048)
        tasks = [asyncio.create_task(server.serve(sockets=[listener])), asyncio.create_task(service.run())]
        try:
            yield service.control_routes()
        finally:
            server.should_exit = True
            await tasks[0]
            tasks[1].cancel()
            await service.close()


async def _no_kubernetes(_: Request) -> JsonValue:
    raise TpuxError(
        "this emulator has no Kubernetes API",
        hint="`tpux emulator stop`, then `tpux emulator start --detach --kubernetes 0`",
    )


def delete_state(home: Home) -> None:
    """Delete the state of an emulator that is not running, and kill its workers if it was killed.

    Raises:
        TpuxError: it is running.
    """
    if not home.path.exists():
        return
    with locked(home):
        kill_leftovers(home)
        for path in (*home.state_files, home.server, home.log, home.console, home.kubeconfig):
            path.unlink(missing_ok=True)
        for directory in (home.pods, home.kubernetes):
            wipe(directory)


def kill_leftover_workers(home: Home) -> bool:
    """Kill the workers that a killed emulator left running. The state of its cloud is kept.

    Returns:
        True if there were any.

    Raises:
        TpuxError: it is running.
    """
    if not home.path.exists():
        return False
    with locked(home):
        return kill_leftovers(home)
