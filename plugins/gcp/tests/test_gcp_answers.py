"""Answers that no library knows: new fields, types and states pass through; what is no answer is unknown."""

from __future__ import annotations

import importlib
import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from google.auth.exceptions import GoogleAuthError, RefreshError, TransportError
from requests.exceptions import RequestException
from urllib3.exceptions import HTTPError

from tpux_gcp import api, errors
from tpux_gcp.api import Api
from tpux_gcp.credentials import Place
from tpux_gcp.errors import CloudError
from tpux_gcp.resource import Location, TpuResource

Z = Location("p", "z")
NODE = {"name": Z.node("n"), "state": "WARMING_UP", "health": 97, "novel": {"@type": "x/y"}, "networkEndpoints": [None]}
HTML = "<html>Sign in to the hotel's network</html>"


@pytest.fixture
def answering(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Api]]:
    """Return `answering(answer, ...)`: an API whose calls get these answers in turn, the last one again and again."""
    monkeypatch.setattr(api, "RETRY_DEADLINE", 0.1)
    servers = []

    def start(*answers: object, status: int = 200) -> Api:
        left = list(answers)

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                answer = left.pop(0) if len(left) > 1 else left[0]
                body = (answer if isinstance(answer, str) else json.dumps(answer)).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_POST = do_PATCH = do_DELETE = answer  # noqa: N815  (names of http.server)

            def log_message(self, *_: object) -> None: ...

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return Api(Place("p", endpoint=f"http://127.0.0.1:{server.server_port}"))

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def test_an_unknown_state_means_wait(answering):
    node = answering(NODE).node(Z, "n")
    assert (node.state, node.health, node.status) == ("WARMING_UP", "97", "creating")
    queued = answering({"name": Z.queued_resource("q"), "state": {"state": "PONDERING"}}).queued_resource(Z, "q")
    assert TpuResource.from_queued(queued, {}).status == "creating"


def test_a_list_is_read_item_by_item(answering):
    asked = answering({"nodes": [7, {"id": "nameless"}, NODE], "nextPageToken": "t"}, {"nodes": [NODE]})
    assert [node.name for node in asked.nodes(Z)] == ["n", "n"]
    assert asked.unreadable == 2


def test_all_pages_of_the_zones_are_read(answering):
    pages = {"locations": [{"locationId": "b"}], "nextPageToken": "t"}, {"locations": [{"locationId": "a"}]}
    assert answering(*pages).zones() == ["a", "b"]


@pytest.mark.parametrize("kind", ["google.cloud.common.OperationMetadata", "google.cloud.tpu.v2alpha1.X", "a.b.New"])
def test_operation_metadata_of_any_type(answering, kind):
    metadata = {"@type": f"type.googleapis.com/{kind}", "verb": "create", "target": "projects/12/locations/z/nodes/n"}
    running = {"name": "projects/p/locations/z/operations/1", "metadata": metadata}
    foreign = {"name": "projects/p/locations/z/operations/0", "metadata": {"@type": "x/y", "value": "AAAA"}}
    page = {"operations": [foreign, running]}
    assert answering(page).running_creation(Z, Z.node("n")) == running["name"]
    assert answering(page).running_creation(Z, Z.node("m")) == ""


def test_unknown_details_of_an_error(answering):
    details = [5, {"@type": "type.googleapis.com/new.Detail", "x": 1}]
    failed = {"state": {"state": "FAILED", "failedData": {"error": {"code": 8, "message": "m", "details": details}}}}
    assert answering({"name": Z.queued_resource("q"), **failed}).queued_resource(Z, "q").error == (8, "m")
    with pytest.raises(CloudError) as raised:
        answering({"error": {"code": 403, "message": "no", "details": details}}, status=403).node(Z, "n")
    assert raised.value.problem.kind == "forbidden"


@pytest.mark.parametrize("answer", [HTML, "", "[]", "null", "{}"])
def test_what_is_no_answer_is_unknown(answering, answer):
    with pytest.raises(CloudError) as raised:
        answering(answer).node(Z, "n")
    assert raised.value.problem.kind == "transient"
    with pytest.raises(CloudError) as raised:
        answering(answer).create_node(Z, "n", {})
    assert (raised.value.problem.kind, raised.value.problem.unanswered) == ("transient", True)


@pytest.mark.parametrize("status", [302, 400, 403, 404, 500, 502, 504])
def test_an_error_of_somebody_else_is_no_refusal(answering, status):
    with pytest.raises(CloudError) as raised:
        answering(HTML, status=status).create_node(Z, "n", {})
    assert (raised.value.problem.kind, raised.value.problem.unanswered) == ("transient", True)


@pytest.mark.parametrize("name", ["..", "a/b/../c", "n?force=true", "n#x", "", "n%2e"])
def test_a_name_that_means_something_in_a_url_is_refused(answering, name):
    with pytest.raises(CloudError, match="invalid name"):
        answering(NODE).node(Z, name)


def _classes(*modules: str) -> list[type[Exception]]:
    found = [each for module in modules for each in vars(importlib.import_module(module)).values()]
    return sorted({each for each in found if isinstance(each, type) and issubclass(each, Exception)}, key=str)


def _made(kind: type[Exception]) -> Exception:
    """Return an exception of a class, whatever its constructor asks for."""
    error = kind.__new__(kind)
    error.args = ("said",)
    if isinstance(error, RequestException):
        error.request = error.response = None
    return error


CONNECTION = [
    each
    for each in _classes("requests.exceptions", "urllib3.exceptions")
    if issubclass(each, (RequestException, HTTPError)) and not issubclass(each, Warning)
]
AUTH = [each for each in _classes("google.auth.exceptions") if issubclass(each, GoogleAuthError)]


@pytest.mark.parametrize("kind", [*CONNECTION, OSError, socket.gaierror, ssl.SSLError, TimeoutError], ids=str)
def test_to_be_offline_is_not_to_be_refused(kind):
    error = _made(kind)
    assert errors.from_failed_call(error).kind == "transient"
    for wrapper in AUTH:  # while the token was refreshed
        assert errors.from_failed_call(_caused(wrapper, error)).kind == "transient", wrapper


@pytest.mark.parametrize("kind", AUTH, ids=str)
def test_each_error_of_the_login(kind):
    error = _made(kind)
    error._retryable = False
    offline = issubclass(kind, (TransportError, OSError))
    assert errors.from_failed_call(error).kind == ("transient" if offline else "auth")
    error._retryable = True
    assert errors.from_failed_call(error).kind == ("transient" if offline or error.retryable else "auth")


def test_a_captive_portal_in_place_of_the_server_of_tokens():
    assert errors.from_failed_call(RefreshError(HTML, HTML)).kind == "transient"
    expired = RefreshError("invalid_grant: reauth related error (invalid_rapt)", {"error": "invalid_grant"})
    assert errors.from_failed_call(expired).kind == "auth"


def _caused(kind: type[Exception], cause: Exception) -> Exception:
    error = _made(kind)
    error._retryable, error.__cause__ = False, cause
    return error
