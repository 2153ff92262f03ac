"""Connections that a fault can cut."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.requests import Request
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

_KEY = "tpux_connection"


class Connection(H11Protocol):
    """uvicorn's HTTP connection, which tells the application about itself."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, {**app_state, _KEY: self}, _loop)


def cut(request: Request) -> None:
    """Close the request's connection at once, without an answer."""
    connection = request.scope["state"][_KEY]
    connection.transport.abort()
