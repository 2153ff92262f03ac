"""The web application: the methods of the APIs, the emulator's control routes, and 501 for everything else."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.routing import Route

from tpux_emulator.api import compute, locations, nodes, operations, os_login, queued_resources
from tpux_emulator.api.exchanges import ExchangeLog
from tpux_emulator.api.middleware import FaultMiddleware, RejectBrowsers
from tpux_emulator.cloud.cloud import Cloud

# Of v2alpha1 there are the creations; the rest of it is answered 501.
_METHODS = [
    *nodes.METHODS,
    *queued_resources.METHODS,
    *operations.METHODS,
    *locations.METHODS,
    *compute.METHODS,
    *os_login.METHODS,
]
_VERBS = ["GET", "POST", "PATCH", "PUT", "DELETE"]


def application(cloud: Cloud, exchanges: ExchangeLog, control: list[Route]) -> Starlette:
    """Return the application.

    Args:
        cloud: the cloud.
        exchanges: records requests and answers.
        control: the emulator's own routes.
    """
    faults = FaultMiddleware(cloud, exchanges)
    routes = [Route(method.path, faults.endpoint(method), methods=[method.verb]) for method in _METHODS]
    others = Route("/{rest:path}", faults.endpoint(None), methods=_VERBS)
    # Against DNS rebinding: a foreign name that resolves to this machine is rejected.
    hosts = Middleware(TrustedHostMiddleware, allowed_hosts=["127.0.0.1", "localhost"])
    return Starlette(routes=[*control, *routes, others], middleware=[hosts, Middleware(RejectBrowsers)])
