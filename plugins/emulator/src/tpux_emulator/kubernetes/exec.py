"""exec: a WebSocket that carries the input and output of a command in a pod (v5 and v4 of the channel protocol)."""

from __future__ import annotations

import asyncio
import contextlib
import json
from urllib.parse import parse_qsl

from starlette.responses import JSONResponse
from starlette.websockets import WebSocket, WebSocketDisconnect
from uvicorn.config import Config
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState

from tpux_emulator.api.exchanges import Exchange, ExchangeLog
from tpux_emulator.cloud.fault_rules import Effect
from tpux_emulator.kubernetes.api import authorize, find_target, permit
from tpux_emulator.kubernetes.cluster import Cluster
from tpux_emulator.kubernetes.objects import Pod
from tpux_emulator.kubernetes.pod_processes import PodProcesses
from tpux_emulator.kubernetes.status import KubeError
from tpux_emulator.protojson import JsonObject

_STDIN, _STDOUT, _STDERR, _ERROR, _RESIZE, _CLOSE = 0, 1, 2, 3, 4, 255
_CHUNK = 32 * 1024
_QUIET = 0.5
_CONNECTION = "tpux_connection"
_V5 = "v5.channel.k8s.io"
METHOD = "kube.pods.exec"


class ExecConnection(WebSocketsSansIOProtocol):
    """uvicorn's WebSocket connection, accessible from its application, so that a fault can abort it."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, object],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, {**app_state, _CONNECTION: self}, _loop)


class Exec:
    """Runs commands in pods for WebSocket clients.

    Args:
        cluster: the cluster.
        processes: starts the commands.
        exchanges: records the requests.
    """

    def __init__(self, cluster: Cluster, processes: PodProcesses, exchanges: ExchangeLog) -> None:
        self._cluster, self._processes, self._exchanges = cluster, processes, exchanges
        self._open: dict[WebSocket, str] = {}

    def cut(self, uid: str) -> int:
        """Abort the connections to a pod; return how many there were. Their commands keep running."""
        cut = [socket for socket, pod in self._open.items() if pod == uid]
        for socket in cut:
            _abort(socket)
        return len(cut)

    async def serve(self, socket: WebSocket) -> None:
        """Serve a connection."""
        query = parse_qsl(socket.url.query)
        commands = [value for key, value in query if key == "command"]
        exchange = Exchange(
            number=self._exchanges.next_number(), at=self._cluster.now, method=METHOD, verb="GET",
            path=socket.url.path, query=dict(query), body=[*commands], agent=socket.headers.get("user-agent", ""),
        )  # fmt: skip
        try:
            if await self._apply_faults(socket, exchange):
                return
            await self._accept(socket, exchange, commands)
        except KubeError as error:
            exchange.status, exchange.answer = error.code, error.body()
            headers = {"Retry-After": "1"} if error.code == 429 else None
            await socket.send_denial_response(JSONResponse(error.body(), error.code, headers))
        finally:
            self._exchanges.add(exchange)

    async def _apply_faults(self, socket: WebSocket, exchange: Exchange) -> bool:
        """Apply the fault rules; return whether the connection is aborted."""
        cloud = self._cluster.cloud
        for effect in (Effect.SLOW, Effect.DROP, Effect.LATE, Effect.HANG, Effect.ERROR):
            name = exchange.path.split("/")[-2]
            if (rule := cloud.consume_rule(effect, method=METHOD, name=name)) is None:
                continue
            exchange.fault = rule.id
            if effect is Effect.ERROR:
                raise KubeError(rule.status, rule.message)
            if effect in (Effect.SLOW, Effect.HANG):
                await asyncio.sleep(cloud.clock.real_seconds(rule.seconds or 3600.0))
            if effect is not Effect.SLOW:
                _abort(socket)
                return True
        return False

    async def _accept(self, socket: WebSocket, exchange: Exchange, command: list[str]) -> None:
        target = find_target(self._cluster, exchange.path)
        authorize(self._cluster, socket.headers)
        if target is None:
            raise KubeError(404)
        permit(self._cluster, "create", target)
        pod = self._cluster.get(Pod, target.namespace, target.name)
        if not command:
            raise KubeError(400, "you must specify at least 1 command for the container")
        container = exchange.query.get("container") or pod.spec.containers[0].name
        if container != pod.spec.containers[0].name:
            raise KubeError(400, f"container {container} is not valid for pod {pod.name}")
        if not self._processes.runs(pod.uid):
            raise KubeError(500, f'unable to upgrade connection: container not found ("{container}")', "InternalError")
        offered = socket.scope["subprotocols"]
        chosen = next((each for each in offered if each in self._cluster.settings.exec_protocols), None)
        if chosen is None:
            raise KubeError(403, f"unable to upgrade: unsupported protocols {offered}", "Forbidden")
        wanted = {key for key in ("stdin", "stdout", "stderr") if exchange.query.get(key) in ("true", "1")}
        await socket.accept(subprotocol=chosen)
        exchange.status = 101
        self._open[socket] = pod.uid
        try:
            exchange.answer = await self._run(socket, pod, command, wanted, chosen)
            await self._send(socket, _ERROR, json.dumps(exchange.answer).encode())
            await socket.close()
        except (WebSocketDisconnect, RuntimeError):
            return  # the command keeps running
        finally:
            del self._open[socket]

    async def _run(
        self, socket: WebSocket, pod: Pod, command: list[str], wanted: set[str], protocol: str
    ) -> JsonObject:
        """Run a command until it ends, and return its Status."""
        try:
            process = await self._processes.execute(pod.uid, command, stdin="stdin" in wanted)
        except (OSError, KeyError) as error:
            return _failure(126, f"command terminated with exit code 126: {error}")
        seen = asyncio.Event()
        pumps = [
            asyncio.ensure_future(self._pump(socket if name in wanted else None, channel, stream, seen))
            for name, channel, stream in (("stdout", _STDOUT, process.stdout), ("stderr", _STDERR, process.stderr))
        ]
        reader = asyncio.ensure_future(self._read(socket, process, closes=protocol == _V5))
        ended = asyncio.ensure_future(process.wait())
        await asyncio.wait({reader, ended}, return_when=asyncio.FIRST_COMPLETED)
        if not ended.done():
            _close_input(process)
            self._cluster.cloud.spawn(_reap(process))
            raise WebSocketDisconnect
        # What the command started may still hold its output open: the rest is awaited as long as something comes.
        while not all(pump.done() for pump in pumps):
            seen.clear()
            await asyncio.wait({*pumps, reader}, timeout=_QUIET, return_when=asyncio.ALL_COMPLETED)
            if not seen.is_set() and not all(pump.done() for pump in pumps):
                break
        for task in (reader, *pumps):
            task.cancel()
        code = process.returncode or 0
        code = 128 - code if code < 0 else code
        return _failure(code, f"command terminated with non-zero exit code: exit status {code}") if code else _SUCCESS

    async def _pump(
        self, socket: WebSocket | None, channel: int, stream: asyncio.StreamReader | None, seen: asyncio.Event
    ) -> None:
        """Send what a command writes, or throw it away."""
        while stream is not None and (data := await stream.read(_CHUNK)):
            seen.set()
            if socket is not None:
                try:
                    await self._send(socket, channel, data)
                except (WebSocketDisconnect, RuntimeError):
                    socket = None  # nobody reads any more; the command must not block
            seen.set()

    async def _read(self, socket: WebSocket, process: asyncio.subprocess.Process, *, closes: bool) -> None:
        """Give a command its input until the client disconnects."""
        while (message := await socket.receive())["type"] != "websocket.disconnect":
            data: bytes = message.get("bytes") or str(message.get("text") or "").encode()
            if data[:1] == bytes([_STDIN]) and process.stdin is not None:
                with contextlib.suppress(OSError):
                    process.stdin.write(data[1:])
                    await process.stdin.drain()
            elif closes and data == bytes([_CLOSE, _STDIN]):
                _close_input(process)

    async def _send(self, socket: WebSocket, channel: int, data: bytes) -> None:
        await socket.send_bytes(bytes([channel]) + data)


_SUCCESS: JsonObject = {"metadata": {}, "status": "Success"}


def _failure(code: int, message: str) -> JsonObject:
    causes: JsonObject = {"causes": [{"reason": "ExitCode", "message": str(code)}]}
    return {"metadata": {}, "status": "Failure", "message": message, "reason": "NonZeroExitCode", "details": causes}


def _close_input(process: asyncio.subprocess.Process) -> None:
    if process.stdin is not None:
        process.stdin.close()


async def _reap(process: asyncio.subprocess.Process) -> None:
    await process.wait()


def _abort(socket: WebSocket) -> None:
    """Close a connection at once."""
    connection: ExecConnection = socket.scope["state"][_CONNECTION]
    connection.transport.abort()
