"""The pages and what they ask for. Each route is listed here; `guard.py` refuses the rest before."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from tpux import JsonValue, TpuxError, UsageError, api
from tpux_web import logs
from tpux_web.actions import ACTIONS, Action, question, run
from tpux_web.stream import MOST_TOPICS, Streams

STATIC = Path(__file__).parent / "static"
TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".html": "text/html"}
FILES = {str(path.relative_to(STATIC)): path for path in STATIC.rglob("*") if path.suffix in TYPES}
"""All that is served of the front end: no path of a request is ever joined to a directory."""
LONGEST_BODY = 4096


def make_app(streams: Streams, *, actions: bool) -> Starlette:
    """Return the application, which `Guard` has to wrap.

    Args:
        streams: what the pages show.
        actions: whether they offer to change jobs.
    """

    async def page(request: Request) -> Response:
        del request
        return _file("index.html")

    async def static(request: Request) -> Response:
        return _file(request.path_params["name"])

    async def stream(request: Request) -> Response:
        names = request.query_params.getlist("topic")
        if streams.is_full or len(names) > MOST_TOPICS:
            return JSONResponse({"error": "too many pages are open"}, 503)
        try:
            topics = [streams.topic(name) for name in names]
        except ValueError as error:
            raise HTTPException(400, str(error)) from error
        greeting: dict[str, JsonValue] = {"actions": actions}
        return _Stream(streams, streams.lines(topics, greeting))

    routes = [
        *(Route(path, page) for path in ("/", "/jobs", "/jobs/{job:int}", "/machines", "/queue")),
        Route("/static/{name:path}", static),
        Route("/api/stream", stream),
        Route("/api/jobs/{job:int}/log/{attempt:int}/{worker:int}/{end:int}", _earlier),
        Route("/api/jobs/{job:int}/actions/{action}", _ask, methods=["GET"]),
        *([Route("/api/jobs/{job:int}/actions/{action}", _act, methods=["POST"])] if actions else []),
    ]
    return Starlette(routes=routes, exception_handlers={HTTPException: _refused})


class _Stream(StreamingResponse):
    """A stream that counts from its request on, and until the browser is gone."""

    def __init__(self, streams: Streams, lines: AsyncIterator[bytes]) -> None:
        super().__init__(lines, media_type="application/x-ndjson")
        self._streams = streams

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._streams.counted():
            await super().__call__(scope, receive, send)


async def _earlier(request: Request) -> Response:
    given = request.path_params
    path = await asyncio.to_thread(logs.find, given["job"], given["attempt"], given["worker"])
    if path is None:
        raise HTTPException(404, "there is no such output")
    try:
        return JSONResponse(await asyncio.to_thread(logs.read_before, path, given["end"]))
    except OSError as error:
        raise HTTPException(404, "the output cannot be read") from error


async def _ask(request: Request) -> Response:
    action, job = await _action(request)
    return JSONResponse({"question": await asyncio.to_thread(question, action, job), "state": job.state})


async def _act(request: Request) -> Response:
    """Carry an action out whose question the user has answered: for the job as it was then, not as it is now."""
    action, job = await _action(request)
    try:
        body = b""
        async for chunk in request.stream():
            body += chunk
            if len(body) > LONGEST_BODY:
                raise HTTPException(413, "the request is too long")
        asked = json.loads(body)["state"]
    except (ValueError, KeyError, TypeError) as error:
        raise HTTPException(400, "the request does not say which state was asked about") from error
    if asked != job.state:
        raise HTTPException(409, f"job {int(job.id)} is {job.state} by now, not {asked}: nothing was done")
    accepted, said = await asyncio.to_thread(run, action, job)
    return JSONResponse({"accepted": accepted, "said": said})


async def _action(request: Request) -> tuple[Action, api.JobInfo]:
    action = ACTIONS.get(request.path_params["action"])
    if action is None:
        raise HTTPException(404, "there is no such action")
    try:
        return action, await asyncio.to_thread(api.job, str(request.path_params["job"]))
    except UsageError as error:
        raise HTTPException(404, error.message) from error
    except (TpuxError, OSError) as error:
        raise HTTPException(500, str(error)) from error


async def _refused(request: Request, error: Exception) -> Response:
    del request
    code = error.status_code if isinstance(error, HTTPException) else 500
    reason = error.detail if isinstance(error, HTTPException) else "an error of the server"
    return JSONResponse({"error": reason}, code)


def _file(name: str) -> Response:
    path = FILES.get(name)
    if path is None:
        raise HTTPException(404, "there is no such file")
    return FileResponse(path, media_type=TYPES[path.suffix])
