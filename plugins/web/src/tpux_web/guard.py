"""What each request must have before anything of it is looked at, and what each answer says to the browser.

Loopback protects from nobody: other sites in the same browser, and other users of this machine, reach it as well.
Decisions are made on the raw headers and the path alone, and what is not allowed is refused.
"""

from __future__ import annotations

import hmac
import json
import re

from starlette.types import ASGIApp, Message, Receive, Scope, Send

HOST = re.compile(rb"(?:localhost|127\.0\.0\.1|\[::1\])(?::[0-9]{1,5})?")
"""Names of this machine, with any port: `ssh -L 9000:localhost:8080` is the main use."""
OPEN = re.compile(r"/|/jobs|/jobs/[0-9]{1,12}|/machines|/queue|/static/[A-Za-z0-9_./-]+")
"""Paths without data: the same empty page, and the files of the front end."""
ACTION = re.compile(r"/api/jobs/[0-9]{1,12}/actions/[a-z]+")
"""The only paths that are posted to."""
LONGEST_PATH = 200
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "worker-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
HEADERS = (
    (b"content-security-policy", CONTENT_SECURITY_POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)
"""None of them allows another origin to read anything."""


class Guard:
    """Refuse requests that do not come from the user's own page.

    Args:
        app: what answers the others.
        token: what a request for data must have in its header `Authorization`.
        actions: whether jobs may be changed.
    """

    def __init__(self, app: ASGIApp, token: str, *, actions: bool) -> None:
        self._app, self._token, self._actions = app, f"Bearer {token}".encode(), actions

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *HEADERS]
            await send(message)

        if refused := self._refuse(scope):
            code, reason = refused
            body = json.dumps({"error": reason}).encode()
            headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
            await send_guarded({"type": "http.response.start", "status": code, "headers": headers})
            await send_guarded({"type": "http.response.body", "body": body})
        else:
            await self._app(scope, receive, send_guarded)

    def _refuse(self, scope: Scope) -> tuple[int, str] | None:
        """Return the status and the reason with which a request is refused; None if it is not."""
        path, hosts, origins = scope["path"], _values(scope, b"host"), _values(scope, b"origin")
        if len(hosts) != 1 or not HOST.fullmatch(hosts[0]):
            return 403, "the address must begin with localhost, 127.0.0.1 or [::1]"
        own = b"http://" + hosts[0]
        if any(origin != own for origin in origins):
            return 403, "the request comes from another page"
        if not path.isprintable():
            return 404, "there is no such page"  # the router's patterns allow a newline at their end
        if len(path) > LONGEST_PATH:
            return 414, "the path is too long"
        if scope["method"] not in ("GET", "HEAD"):
            refused = self._refuse_change(scope, own)
        elif OPEN.fullmatch(path):
            return None
        else:
            refused = None
        return refused or self._refuse_data(scope)

    def _refuse_change(self, scope: Scope, own: bytes) -> tuple[int, str] | None:
        if scope["method"] != "POST" or not ACTION.fullmatch(scope["path"]):
            return 405, "this method is not allowed"
        if not self._actions:
            return 403, "jobs are changed only if the server was started with: tpux web --allow-actions"
        if _values(scope, b"origin") != [own] or _values(scope, b"sec-fetch-site") != [b"same-origin"]:
            return 403, "the request does not come from this page"
        return None

    def _refuse_data(self, scope: Scope) -> tuple[int, str] | None:
        if any(site not in (b"same-origin", b"none") for site in _values(scope, b"sec-fetch-site")):
            return 403, "the request comes from another page"
        given = _values(scope, b"authorization")
        if len(given) != 1 or not hmac.compare_digest(given[0], self._token):
            return 401, "the token is missing or wrong: open the address that `tpux web` has printed"
        return None


def _values(scope: Scope, name: bytes) -> list[bytes]:
    """Return the values of a header, as they came."""
    return [value for key, value in scope["headers"] if key == name]
