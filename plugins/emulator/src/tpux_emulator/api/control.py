"""The emulator's own routes: look at the cloud, break it, stop it. They are not part of any Google API."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable

from pydantic import JsonValue, TypeAdapter, ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tpux import TpuxError
from tpux_emulator.api.proto import JsonObject
from tpux_emulator.api.record import Requests
from tpux_emulator.cloud.cloud import Cloud
from tpux_emulator.errors import ApiError
from tpux_emulator.faults.orders import Order, carry_out_order
from tpux_emulator.faults.rules import Rule
from tpux_emulator.settings import Settings

PREFIX = "/emulator/v1"
_ORDER: TypeAdapter[Order] = TypeAdapter(Order)
Handler = Callable[[Request], Awaitable[JsonValue]]


class Control:
    """The routes.

    Args:
        cloud: the cloud to look at and to break.
        requests: the exchanges so far.
        stop: makes the server end.
        facts: what the emulator says about itself.
    """

    def __init__(self, cloud: Cloud, requests: Requests, stop: Callable[[], None], facts: JsonObject) -> None:
        self._cloud, self._requests, self._stop, self._facts = cloud, requests, stop, facts

    def routes(self) -> list[Route]:
        """All routes, for the application."""
        table: list[tuple[str, str, Handler]] = [
            ("GET", "/status", self._status),
            ("GET", "/requests", self._list_requests),
            ("POST", "/orders", self._order),
            ("POST", "/rules", self._add_rule),
            ("DELETE", "/rules", self._clear_rules),
            ("DELETE", "/rules/{id}", self._clear_rules),
            ("PATCH", "/settings", self._change_settings),
            ("POST", "/stop", self._end),
        ]
        return [Route(PREFIX + path, _guarded(handler), methods=[verb]) for verb, path, handler in table]

    async def _status(self, _: Request) -> JsonValue:
        cloud = self._cloud
        return {
            **self._facts,
            "now": cloud.clock.now(),
            "nodes": [node.model_dump(mode="json", exclude={"spec"}) for node in cloud.nodes.values()],
            "queuedResources": [item.model_dump(mode="json", exclude={"spec"}) for item in cloud.queued.values()],
            "rules": [rule.model_dump(mode="json") for rule in cloud.rules.values()],
            "plans": [plan.model_dump(mode="json") for plan in cloud.plans.values()],
            "settings": cloud.settings.model_dump(mode="json"),
        }

    async def _list_requests(self, request: Request) -> JsonValue:
        since = int(request.query_params.get("since", "0"))
        return [exchange.model_dump(mode="json") for exchange in self._requests.since(since)]

    async def _order(self, request: Request) -> JsonValue:
        order = _ORDER.validate_python(json.loads(await request.body()))
        return await carry_out_order(self._cloud, order)

    async def _add_rule(self, request: Request) -> JsonValue:
        content = json.loads(await request.body())
        lasting = content.pop("for", None)
        if lasting is not None:
            content["until"] = self._cloud.clock.now() + float(lasting)
        return self._cloud.add_rule(Rule.model_validate(content)).model_dump(mode="json")

    async def _clear_rules(self, request: Request) -> JsonValue:
        wanted = request.path_params.get("id")
        chosen = [rule_id for rule_id in self._cloud.rules if wanted in (None, rule_id)]
        if wanted and not chosen:
            raise TpuxError(f"there is no fault {wanted!r}", hint="`tpux emulator faults` lists them")
        return {"cleared": [rule_id for rule_id in chosen if self._cloud.clear_rule(rule_id)]}

    async def _change_settings(self, request: Request) -> JsonValue:
        change = json.loads(await request.body())
        now = self._cloud.settings.model_dump()
        if "delays" in change:
            change["delays"] = {**now["delays"], **change["delays"]}
        self._cloud.change_settings(Settings.model_validate({**now, **change}))
        return self._cloud.settings.model_dump(mode="json")

    async def _end(self, _: Request) -> JsonValue:
        self._stop()
        return {}


def _guarded(handler: Handler) -> Callable[[Request], Awaitable[Response]]:
    """Mistakes become sentences with a status, never a traceback."""

    async def serve(request: Request) -> Response:
        try:
            return JSONResponse(await handler(request))
        except TpuxError as error:
            return JSONResponse({"message": error.message, "where": error.where, "hint": error.hint}, 400)
        except ApiError as error:
            return JSONResponse({"message": error.message}, 400)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            return JSONResponse({"message": first["msg"], "where": where}, 400)
        except ValueError as error:
            return JSONResponse({"message": str(error)}, 400)

    return serve
