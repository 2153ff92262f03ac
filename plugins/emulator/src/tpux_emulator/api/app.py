"""The web application: the APIs' methods, the emulator's own control, and 501 for all else."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from tpux_emulator.api.compute import COMPUTE
from tpux_emulator.api.gate import Gate
from tpux_emulator.api.methods import V2
from tpux_emulator.api.record import Requests
from tpux_emulator.cloud.cloud import Cloud

_VERBS = ["GET", "POST", "PATCH", "PUT", "DELETE"]


class NoBrowsers:
    """Refuses what a web page sent: nobody's browser shall create workers here.

    Args:
        app: who serves the rest.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 403 to a request with an Origin."""
        if scope["type"] == "http" and "origin" in Request(scope).headers:
            await JSONResponse({"error": {"code": 403, "message": "no browsers"}}, 403)(scope, receive, send)
            return
        await self._app(scope, receive, send)


def application(cloud: Cloud, requests: Requests, control: list[Route]) -> Starlette:
    """The application.

    Args:
        cloud: who answers the APIs' methods.
        requests: where exchanges are kept.
        control: the emulator's own routes.
    """
    gate = Gate(cloud, requests)
    routes = [Route(each.path, gate.endpoint(each), methods=[each.verb]) for each in (*V2, *COMPUTE)]
    # v2alpha1 goes here, as another table of methods. Until then it is one of the others.
    others = Route("/{rest:path}", gate.endpoint(None), methods=_VERBS)
    # A name that points at this machine from elsewhere (DNS rebinding) is no name of ours.
    hosts = Middleware(TrustedHostMiddleware, allowed_hosts=["127.0.0.1", "localhost"])
    return Starlette(routes=[*control, *routes, others], middleware=[hosts, Middleware(NoBrowsers)])
