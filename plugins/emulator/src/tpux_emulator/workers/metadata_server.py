"""The metadata server, which listens on an address of its own for each worker."""

from __future__ import annotations

import asyncio
import functools
import logging
import socket

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from tpux_emulator.cloud.records import NodeRecord, WorkerRecord
from tpux_emulator.workers.addresses import AddressBlock
from tpux_emulator.workers.metadata import Metadata

log = logging.getLogger("tpux_emulator.workers")
_FLAVOR = {"Metadata-Flavor": "Google", "Server": "Metadata Server for VM"}


class MetadataServer:
    """One application with a listener per worker; the address of a request identifies the worker.

    Args:
        block: the emulator's addresses.
        port: the port to listen on.
        metadata: the metadata of workers.
    """

    def __init__(self, block: AddressBlock, port: int, metadata: Metadata) -> None:
        self._block, self._port, self._metadata = block, port, metadata
        self._listeners: dict[str, asyncio.Server] = {}
        self._workers: dict[str, tuple[NodeRecord, WorkerRecord]] = {}
        routes = [Route("/{path:path}", self._answer, methods=["GET", "PUT", "DELETE"])]
        self._config = uvicorn.Config(
            Starlette(routes=routes), http=H11Protocol, lifespan="off", log_config=None, access_log=False,
            proxy_headers=False, server_header=False,
        )  # fmt: skip
        self._config.load()
        self._server = uvicorn.Server(self._config)

    async def serve(self, node: NodeRecord, worker: WorkerRecord) -> None:
        """Start listening for a worker."""
        address = self._block.metadata(worker.slot)
        self._workers[address] = node, worker
        if address in self._listeners:
            return
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((address, self._port))
        except OSError as error:
            listener.close()
            log.warning("no metadata server on %s:%d: %s", address, self._port, error)
            return
        protocol = functools.partial(H11Protocol, self._config, self._server.server_state, {})
        self._listeners[address] = await asyncio.get_running_loop().create_server(protocol, sock=listener)

    def stop(self, worker: WorkerRecord) -> None:
        """Stop listening for a worker."""
        address = self._block.metadata(worker.slot)
        if (listener := self._listeners.pop(address, None)) is not None:
            listener.close()
        self._workers.pop(address, None)

    async def _answer(self, request: Request) -> Response:
        node, worker = self._workers[request.scope["server"][0]]
        if request.headers.get("metadata-flavor") != "Google" and request.url.path != "/":
            return PlainTextResponse("Missing Metadata-Flavor:Google header.\n", 403, _FLAVOR)
        path = request.url.path.removeprefix("/computeMetadata/v1").strip("/")
        if request.method != "GET":
            value = (await request.body()).decode(errors="replace") if request.method == "PUT" else None
            return PlainTextResponse("", self._metadata.publish(node, worker, path, value), _FLAVOR)
        query = request.query_params
        if query.get("wait_for_change", "").lower() == "true":

            async def abandoned() -> bool:
                return request.scope["server"][0] not in self._workers or await request.is_disconnected()

            seconds = query.get("timeout_sec", "")
            timeout = float(seconds) if seconds.isdecimal() else float("inf")
            await self._metadata.changed(node, worker, path, query.get("last_etag", ""), timeout, abandoned)
        recursive = query.get("recursive", "").lower() == "true"
        found = self._metadata.read(node, worker, path, recursive=recursive)
        if found is None:
            return PlainTextResponse("Not Found\n", 404, _FLAVOR)
        text, kind = found
        etag = self._metadata.etag(node, worker, path)
        return Response(text, 200, {**_FLAVOR, "ETag": etag}, media_type=kind)
