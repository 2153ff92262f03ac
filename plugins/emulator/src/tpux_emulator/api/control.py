"""The emulator's own routes: read its status, inject faults, change settings, stop. No Google API has them."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable

from pydantic import JsonValue, TypeAdapter, ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tpux import TpuxError
from tpux_emulator.api.exchanges import ExchangeLog
from tpux_emulator.cloud.cloud import Cloud
from tpux_emulator.cloud.fault_injection import Injection, inject
from tpux_emulator.cloud.fault_rules import FaultRule
from tpux_emulator.cloud.settings import Settings
from tpux_emulator.errors import ApiError
from tpux_emulator.protojson import JsonObject

PREFIX = "/emulator/v1"
_INJECTION: TypeAdapter[Injection] = TypeAdapter(Injection)
Handler = Callable[[Request], Awaitable[JsonValue]]


class Control:
    """The handlers of the control routes.

    Args:
        cloud: the cloud.
        exchanges: the API requests so far, with their answers.
        stop: stops the server.
        info: what the status says about the emulator itself: its URL, process and so on.
    """

    def __init__(self, cloud: Cloud, exchanges: ExchangeLog, stop: Callable[[], None], info: JsonObject) -> None:
        self._cloud, self._exchanges, self._stop, self._info = cloud, exchanges, stop, info

    def routes(self) -> list[Route]:
        """Return the routes for the application."""
        table: list[tuple[str, str, Handler]] = [
            ("GET", "/status", self._status),
            ("GET", "/requests", self._list_requests),
            ("POST", "/injections", self._inject),
            ("POST", "/rules", self._add_rule),
            ("DELETE", "/rules", self._clear_rules),
            ("DELETE", "/rules/{id}", self._clear_rules),
            ("PATCH", "/settings", self._change_settings),
            ("POST", "/stop", self._stop_server),
        ]
        return [Route(PREFIX + path, with_errors(handler), methods=[verb]) for verb, path, handler in table]

    async def _status(self, _: Request) -> JsonValue:
        cloud = self._cloud
        return {
            **self._info,
            "now": cloud.clock.now(),
            "nodes": [node.model_dump(mode="json", exclude={"spec"}) for node in cloud.nodes.values()],
            "queuedResources": [item.model_dump(mode="json", exclude={"spec"}) for item in cloud.queued.values()],
            "rules": [rule.model_dump(mode="json") for rule in cloud.rules.values()],
            "scheduledFaults": [fault.model_dump(mode="json") for fault in cloud.scheduled_faults.values()],
            "settings": cloud.settings.model_dump(mode="json"),
        }

    async def _list_requests(self, request: Request) -> JsonValue:
        since = int(request.query_params.get("since", "0"))
        return [exchange.model_dump(mode="json") for exchange in self._exchanges.since(since)]

    async def _inject(self, request: Request) -> JsonValue:
        return await inject(self._cloud, _INJECTION.validate_python(json.loads(await request.body())))

    async def _add_rule(self, request: Request) -> JsonValue:
        content = json.loads(await request.body())
        lasting = content.pop("for", None)
        if lasting is not None:
            content["until"] = self._cloud.clock.now() + float(lasting)
        return self._cloud.add_rule(FaultRule.model_validate(content)).model_dump(mode="json")

    async def _clear_rules(self, request: Request) -> JsonValue:
        requested = request.path_params.get("id")
        ids = [rule_id for rule_id in self._cloud.rules if requested in (None, rule_id)]
        if requested and not ids:
            raise TpuxError(f"there is no fault {requested!r}", hint="`tpux emulator status` lists them")
        return {"cleared": [rule_id for rule_id in ids if self._cloud.clear_rule(rule_id)]}

    async def _change_settings(self, request: Request) -> JsonValue:
        change = json.loads(await request.body())
        current = self._cloud.settings.model_dump()
        if "delays" in change:
            change["delays"] = {**current["delays"], **change["delays"]}
        self._cloud.change_settings(Settings.model_validate({**current, **change}))
        return self._cloud.settings.model_dump(mode="json")

    async def _stop_server(self, _: Request) -> JsonValue:
        self._stop()
        return {}


def with_errors(handler: Handler) -> Callable[[Request], Awaitable[Response]]:
    """Return an endpoint that answers 400 with a message when the handler raises an error for the user."""

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
