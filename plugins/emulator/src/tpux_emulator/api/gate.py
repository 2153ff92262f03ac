"""What every request passes: the standing faults, the errors, the record."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable

from pydantic import JsonValue
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from tpux_emulator.api.call import Call, Method
from tpux_emulator.api.connection import cut
from tpux_emulator.api.partial import parse, select
from tpux_emulator.api.proto import JsonObject, Message
from tpux_emulator.api.record import Exchange, Requests
from tpux_emulator.cloud.cloud import Cloud
from tpux_emulator.errors import ApiError, from_http, unimplemented
from tpux_emulator.faults.rules import Effect, Rule

_ON_ARRIVAL = (Effect.SLOW, Effect.DROP, Effect.HANG, Effect.ERROR)
_THROTTLED = (
    "Quota exceeded for quota metric 'Maximum number of {0} requests' and limit 'Maximum number of {0} requests per"
    " minute per user' of service 'tpu.googleapis.com' for consumer 'project_number:123456789012'."
)
_SENTENCES = {
    401: "Request had invalid authentication credentials.",
    403: "Permission denied on resource project {project}.",
    500: "Internal error encountered.",
    502: "Bad gateway.",
    503: "The service is currently unavailable.",
    504: "Deadline exceeded.",
}


class Gate:
    """Turns methods into endpoints.

    Args:
        cloud: who answers.
        requests: where exchanges are kept.
    """

    def __init__(self, cloud: Cloud, requests: Requests) -> None:
        self._cloud, self._requests = cloud, requests

    def endpoint(self, method: Method | None) -> Callable[[Request], Awaitable[Response]]:
        """The endpoint of a method; None answers 501."""

        async def serve(request: Request) -> Response:
            payload = await self._payload(request)
            exchange = self._exchange(request, method, payload)
            if await self._stopped(request, exchange):
                self._requests.add(exchange)
                cut(request)
                return Response(status_code=499)
            if exchange.status == 0:
                self._answer(request, method, payload, exchange)
            lost = self._take(Effect.LOSE, exchange)
            response = JSONResponse(exchange.answer, exchange.status)
            if lost is not None:
                exchange.status, exchange.fault = 0, lost.id
                cut(request)
            self._requests.add(exchange)
            return response

        return serve

    async def _payload(self, request: Request) -> bytes:
        try:
            return await request.body()
        except ClientDisconnect:
            return b""

    def _exchange(self, request: Request, method: Method | None, payload: bytes) -> Exchange:
        return Exchange(
            number=self._requests.next_number(),
            at=self._cloud.clock.now(),
            method=method.id if method else "",
            verb=request.method,
            path=request.url.path,
            query=dict(request.query_params),
            body=_json(payload),
            agent=request.headers.get("user-agent", ""),
        )

    def _take(self, effect: Effect, exchange: Exchange) -> Rule | None:
        parts = exchange.path.split("/")
        zone = parts[parts.index("locations") + 1] if "locations" in parts[:-1] else ""
        name = parts[-1].partition(":")[0]
        return self._cloud.take_rule(effect, zone=zone, method=exchange.method, name=name)

    async def _stopped(self, request: Request, exchange: Exchange) -> bool:
        """Run into the standing faults; whether the connection is to be cut now."""
        for effect in _ON_ARRIVAL:
            rule = self._take(effect, exchange)
            if rule is None:
                continue
            exchange.fault = rule.id
            if effect is Effect.DROP:
                return True
            if effect is Effect.HANG:
                await _until_gone(request, self._cloud.clock.real_seconds(rule.seconds) or None)
                return True
            if effect is Effect.SLOW:
                await asyncio.sleep(self._cloud.clock.real_seconds(rule.seconds))
            else:
                error = from_http(rule.status, rule.message or _sentence(rule, exchange))
                exchange.status, exchange.answer = rule.status, error.body()
                return False
        return False

    def _answer(self, request: Request, method: Method | None, payload: bytes, exchange: Exchange) -> None:
        try:
            if method is None:
                raise unimplemented()
            query = method.check_query(exchange.query)
            call = Call(self._cloud, request.path_params, query, payload)
            answer = _encoded(method.run(call), call)
            fields = query.get("fields", "")
            exchange.answer = select(answer, parse(fields)) if fields else answer
            exchange.status = 200
        except ApiError as error:
            exchange.status, exchange.answer = error.http_status, error.body()


def _encoded(answer: Message | JsonObject, call: Call) -> JsonObject:
    return answer.to_json(enum_numbers=call.enum_numbers) if isinstance(answer, Message) else answer


def _sentence(rule: Rule, exchange: Exchange) -> str:
    parts = exchange.path.split("/")
    project = parts[parts.index("projects") + 1] if "projects" in parts[:-1] else ""
    if rule.status == 429:
        collection, _, verb = exchange.method.partition(".")
        return _THROTTLED.format(verb.capitalize() + collection[:1].upper() + collection[1:].rstrip("s"))
    return _SENTENCES.get(rule.status, "An error on demand.").format(project=project)


async def _until_gone(request: Request, seconds: float | None) -> None:
    """Wait until the client gives up, or the time is over."""

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    try:
        await asyncio.wait_for(gone(), seconds)
    except asyncio.TimeoutError:
        return


def _json(payload: bytes) -> JsonValue:
    if not payload:
        return None
    try:
        content: JsonValue = json.loads(payload)
    except ValueError:
        return payload.decode(errors="replace")
    return content
