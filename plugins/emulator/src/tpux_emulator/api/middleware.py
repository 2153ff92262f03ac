"""What every API request passes through: fault rules, error answers, and the record of exchanges."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from pydantic import JsonValue
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from tpux_emulator.api import future
from tpux_emulator.api.call import Call, Method
from tpux_emulator.api.exchanges import Exchange, ExchangeLog
from tpux_emulator.api.partial_response import parse_fields, select_fields
from tpux_emulator.cloud import answers
from tpux_emulator.cloud.cloud import Cloud
from tpux_emulator.cloud.fault_rules import Effect, FaultRule
from tpux_emulator.cloud.tokens import account_of
from tpux_emulator.errors import ApiError, from_http, unimplemented
from tpux_emulator.protojson import JsonObject, Message

log = logging.getLogger("tpux_emulator.api")
_CONNECTION = "tpux_connection"
_BEFORE_HANDLING = (Effect.SLOW, Effect.DROP, Effect.HANG, Effect.LATE, Effect.FORBID, Effect.ERROR)
_THROTTLED_MESSAGE = (
    "Quota exceeded for quota metric 'Maximum number of {0} requests' and limit 'Maximum number of {0} requests per"
    " minute per user' of service 'tpu.googleapis.com' for consumer 'project_number:123456789012'."
)
_MESSAGES = {
    401: "Request had invalid authentication credentials.",
    403: "Permission denied on resource project {project}.",
    500: "Internal error encountered.",
    502: "Bad gateway.",
    503: "The service is currently unavailable.",
    504: "Deadline exceeded.",
}


class RejectBrowsers:
    """ASGI middleware that rejects requests of web pages, so that no page can create workers on this machine.

    Args:
        app: the application that handles all other requests.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 403 to a request with an Origin header."""
        if scope["type"] == "http" and "origin" in Request(scope).headers:
            await JSONResponse({"error": {"code": 403, "message": "no browsers"}}, 403)(scope, receive, send)
            return
        await self._app(scope, receive, send)


class Connection(H11Protocol):
    """uvicorn's HTTP connection, accessible from the requests that it carries, so that a fault can abort it."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, {**app_state, _CONNECTION: self}, _loop)


def _abort(request: Request) -> None:
    """Close the request's connection at once, without an answer."""
    request.scope["state"][_CONNECTION].transport.abort()


class FaultMiddleware:
    """Turns API methods into endpoints that fault rules apply to.

    Args:
        cloud: the cloud.
        exchanges: records requests and answers.
    """

    def __init__(self, cloud: Cloud, exchanges: ExchangeLog) -> None:
        self._cloud, self._exchanges = cloud, exchanges

    def endpoint(self, method: Method | None) -> Callable[[Request], Awaitable[Response]]:
        """Return the endpoint of a method; without a method it answers 501."""

        async def serve(request: Request) -> Response:
            payload = await self._payload(request)
            exchange = self._exchange(request, method, payload)
            if await self._apply_faults(request, method, payload, exchange):
                self._exchanges.add(exchange)
                _abort(request)
                return Response(status_code=499)
            if exchange.status == 0:
                self._answer(request, method, payload, exchange)
            if (seed := self._cloud.settings.future) is not None and isinstance(exchange.answer, dict):
                exchange.answer = future.change(exchange.answer, seed, exchange.number)
            lost = self._consume_rule(Effect.LOSE, exchange)
            response = self._respond(exchange)
            if lost is not None:
                exchange.status, exchange.fault = 0, lost.id
                _abort(request)
            self._exchanges.add(exchange)
            return response

        return serve

    async def _payload(self, request: Request) -> bytes:
        try:
            return await request.body()
        except ClientDisconnect:
            return b""

    def _exchange(self, request: Request, method: Method | None, payload: bytes) -> Exchange:
        return Exchange(
            number=self._exchanges.next_number(),
            at=self._cloud.clock.now(),
            method=method.id if method else "",
            verb=request.method,
            path=request.url.path,
            query=dict(request.query_params),
            body=_json(payload),
            agent=request.headers.get("user-agent", ""),
        )

    def _consume_rule(self, effect: Effect, exchange: Exchange) -> FaultRule | None:
        parts = exchange.path.split("/")
        zone = parts[parts.index("locations") + 1] if "locations" in parts[:-1] else ""
        name = parts[-1].partition(":")[0]
        return self._cloud.consume_rule(effect, zone=zone, method=exchange.method, name=name)

    async def _apply_faults(self, request: Request, method: Method | None, payload: bytes, exchange: Exchange) -> bool:
        """Apply the fault rules. Return True if the connection is to be aborted."""
        for effect in _BEFORE_HANDLING:
            rule = self._consume_rule(effect, exchange)
            if rule is None:
                continue
            exchange.fault = rule.id
            if effect is Effect.DROP:
                return True
            if effect is Effect.LATE:
                self._cloud.spawn(self._handle_later(request, method, payload, exchange, rule.seconds))
                return True
            if effect is Effect.HANG:
                await _wait_for_disconnect(request, self._cloud.clock.real_seconds(rule.seconds) or None)
                return True
            if effect is Effect.SLOW:
                await asyncio.sleep(self._cloud.clock.real_seconds(rule.seconds))
            elif effect is Effect.FORBID:
                refused = answers.error("zone-not-allowed" if rule.form == "policy" else "no-such-zone", zone=rule.zone)
                exchange.status, exchange.answer = refused.http_status, refused.body()
                return False
            else:
                exchange.status, exchange.answer = self._refusal(rule, exchange)
                return False
        return False

    def _refusal(self, rule: FaultRule, exchange: Exchange) -> tuple[int, JsonObject]:
        """Return the answer that a rule of effect ERROR gives."""
        return rule.status, from_http(rule.status, rule.message or _default_message(rule, exchange)).body()

    def _respond(self, exchange: Exchange) -> Response:
        return JSONResponse(exchange.answer, exchange.status)

    async def _handle_later(
        self, request: Request, method: Method | None, payload: bytes, exchange: Exchange, seconds: float
    ) -> None:
        """Handle a request whose client has got no answer. It is lost if the emulator ends before."""
        await asyncio.sleep(self._cloud.clock.real_seconds(seconds))
        handled = exchange.model_copy()
        self._answer(request, method, payload, handled)
        log.info("request %d, handled late: %d %s", handled.number, handled.status, handled.answer)

    def _answer(self, request: Request, method: Method | None, payload: bytes, exchange: Exchange) -> None:
        try:
            if method is None:
                raise unimplemented()
            exchange.account = account_of(self._cloud, request.headers.get("authorization", ""))
            query = method.check_query(exchange.query)
            call = Call(self._cloud, request.path_params, query, payload, method.alpha)
            answer = _encoded(method.run(call), call)
            fields = query.get("fields", "")
            exchange.answer = select_fields(answer, parse_fields(fields)) if fields else answer
            exchange.status = 200
        except ApiError as error:
            exchange.status, exchange.answer = error.http_status, error.body()


def _encoded(answer: Message | JsonObject, call: Call) -> JsonObject:
    return answer.to_json(enum_numbers=call.enum_numbers) if isinstance(answer, Message) else answer


def _default_message(rule: FaultRule, exchange: Exchange) -> str:
    parts = exchange.path.split("/")
    project = parts[parts.index("projects") + 1] if "projects" in parts[:-1] else ""
    if rule.status == 429:
        collection, _, verb = exchange.method.partition(".")
        return _THROTTLED_MESSAGE.format(verb.capitalize() + collection[:1].upper() + collection[1:].rstrip("s"))
    return _MESSAGES.get(rule.status, "An injected error.").format(project=project)


async def _wait_for_disconnect(request: Request, seconds: float | None) -> None:
    """Wait until the client disconnects, or the time is over; without `seconds`, as long as it takes."""

    async def disconnected() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    try:
        await asyncio.wait_for(disconnected(), seconds)
    except TimeoutError:
        return


def _json(payload: bytes) -> JsonValue:
    if not payload:
        return None
    try:
        content: JsonValue = json.loads(payload)
    except ValueError:
        return payload.decode(errors="replace")
    return content
