"""`tpux web` (Watch): serve your jobs, their output and their machines as a web page."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from tpux import UsageError, api

app = api.new_app()


@app.command(epilog="Example: tpux web --port 8080\n\nExample: tpux web --socket --allow-actions")
def web(
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Serve on this port of 127.0.0.1; 0 is any free one.")
    ] = None,
    socket: Annotated[
        bool, typer.Option("--socket", help="Serve on a unix socket that only you can open; for ssh -L.")
    ] = False,
    actions: Annotated[
        bool,
        typer.Option("--allow-actions", help="Let the page stop, resume, rerun and delete jobs; it asks first."),
    ] = False,
) -> None:
    """Show your jobs, their output and their machines on a web page, until Ctrl-C.

    The page is for you alone: each start prints an address with a new token, without which no data is served. By
    default it is on a free port if this machine has a display, else on a unix socket.
    """
    if socket and port is not None:
        raise UsageError("--socket and --port exclude each other", hint="leave one of them out")
    from tpux_web.server import serve

    has_display = sys.platform == "darwin" or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
    serve(None if socket or (port is None and not has_display) else port or 0, actions=actions)
