"""A login that was valid and has expired is waited for; it is no reason to give up a job, and ends no program."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import google.oauth2.credentials
import pytest

from tpux import Denied, Waiting
from tpux_gcp import api, credentials
from tpux_gcp.credentials import Place, call
from tpux_gcp.errors import LOGIN_COMMAND, CloudError


@pytest.mark.parametrize("mode", ["tpu-vm", "queued-resources"])
@pytest.mark.parametrize("method", ["*", "*.create", "*.get"])
def test_a_job_waits_for_its_login_and_goes_on_once_it_is_renewed(drive, mode, method):
    job = drive(mode=mode)
    job.run(until="requesting")  # saved, nothing asked
    job.step()  # the API has answered
    expired = job.cloud.error(401, method)
    waiting = job.run(until="waiting until the login is renewed")
    assert waiting.hint == LOGIN_COMMAND
    assert "credentials" in waiting.why
    for _ in range(20):
        job.pause(job.step())
    job.cloud.clear(expired)
    assert job.ready().allocation.workers
    job.release()


def test_a_login_that_is_not_renewed_in_time_fails_a_job_without_machines(drive):
    job = drive(auth_timeout="2h")
    job.ready()
    job.release()
    job.cloud.error(401)
    began = job.at
    failure = job.denied().failure
    assert (failure.kind, failure.hint) == ("auth", LOGIN_COMMAND)
    assert "not renewed within 7200 s" in failure.evidence
    assert 7200 <= job.at - began < 7500


def test_the_time_begins_anew_once_the_login_was_valid_again(drive):
    job = drive(auth_timeout="1h")
    job.ready()
    job.release()
    for _ in range(2):
        expired = job.cloud.error(401)
        began = job.at
        while job.at - began < 3000:
            job.pause(job.step())
        job.cloud.clear(expired)
        job.ready()
        job.release()


def test_a_release_stays_pending_and_says_what_to_do_while_the_login_has_expired(drive):
    job = drive(auth_timeout="1h")
    job.ready()
    expired = job.cloud.error(401)
    status = job.inspect()
    assert (status.state, status.hint) == ("unknown", LOGIN_COMMAND)
    began = job.at
    while job.at - began < 5 * 3600:
        waiting = job.release_step()
        assert isinstance(waiting, Waiting)
        assert waiting.why.startswith("not released yet: ")
        assert waiting.hint == LOGIN_COMMAND
        job.pause(waiting)
    job.cloud.clear(expired)
    assert job.inspect().hint == ""
    job.release()
    assert job.nodes() == []


def test_a_login_that_was_never_valid_fails_at_once(drive):
    job = drive()
    job.cloud.error(401)
    answer = job.run()
    assert isinstance(answer, Denied)
    assert answer.failure.kind == "auth"


def test_the_time_begins_anew_too_once_the_login_was_valid_for_a_deletion(drive):
    job = drive(auth_timeout="1h", pricing="spot")
    job.ready()
    job.cloud.freeze(job.request.name)  # it remains, once it is being deleted
    job.cloud.preempt(job.request.name)
    job.run(until="is DELETING")
    assert job.saved_state["phase"] == "deleting"
    for _ in range(3):
        expired = job.cloud.error(401)
        began = job.at
        while job.at - began < 3000:
            job.pause(job.step())
        job.cloud.clear(expired)
        job.pause(job.step())
    job.cloud.unfreeze(job.request.name)
    job.ready()
    job.release()


CREATE = {"tpu-vm": "nodes.create", "queued-resources": "queuedResources.create"}
UNAUTHENTICATED = {"code": 16, "message": "Request had invalid authentication credentials."}


@pytest.mark.parametrize("mode", CREATE)
def test_an_operation_during_which_the_login_expires_is_repeated(drive, mode):
    job = drive(mode=mode)
    job.cloud.fail_operation(CREATE[mode], **UNAUTHENTICATED)
    waiting = job.run(until="waiting until the login is renewed")
    assert (waiting.hint, UNAUTHENTICATED["message"] in waiting.why) == (LOGIN_COMMAND, True)
    job.ready()
    job.release()


def test_only_operations_in_a_row_count(drive):
    job = drive(auth_timeout="1h")
    for _ in range(2):
        job.cloud.fail_operation(**UNAUTHENTICATED)
        job.run(until="waiting until the login is renewed")
        full = job.cloud.fail_operation(code=8, message="There is no more capacity in the zone.", count=None)
        began = job.at
        while job.at - began < 3700:
            job.pause(job.step())
        job.cloud.clear(full)
    job.ready()
    job.release()


def test_a_request_that_has_waited_for_long_begins_the_time_anew(drive):
    job = drive(mode="queued-resources", auth_timeout="2h")
    job.cloud.fail_operation(CREATE["queued-resources"], **UNAUTHENTICATED)
    job.run(until="waiting until the login is renewed")
    for _ in range(3):
        job.cloud.fail_operation(CREATE["queued-resources"], **UNAUTHENTICATED)
        job.run(until="request sent")
        job.at += 24 * 3600  # in the queue, with a login that was renewed
        job.run(until="waiting until the login is renewed")
    job.ready()
    job.release()


@pytest.mark.parametrize("mode", CREATE)
def test_operations_for_which_the_login_remains_invalid_fail_the_job_in_time(drive, mode):
    job = drive(mode=mode, auth_timeout="2h")
    job.cloud.fail_operation(CREATE[mode], count=None, **UNAUTHENTICATED)
    began = job.at
    failure = job.denied().failure
    assert (failure.kind, failure.hint) == ("auth", LOGIN_COMMAND)
    assert "not renewed within 7200 s" in failure.evidence
    assert 7200 <= job.at - began < 8000
    job.release()


# --- what google-auth reads again -----------------------------------------------------------------


@pytest.fixture
def tokens() -> Iterator[str]:
    """Return the address of a server of tokens, which accepts the refresh token `renewed`, and of an API."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            renewed = b"refresh_token=renewed" in body
            refused = {"error": "invalid_grant", "error_description": "reauth related error (invalid_rapt)"}
            self.answer(200 if renewed else 400, {"access_token": "t", "expires_in": 3600} if renewed else refused)

        def do_GET(self) -> None:
            self.answer(200, {"name": "projects/p/locations/z/nodes/n", "state": "READY"})

        def answer(self, status: int, content: dict[str, object]) -> None:
            body = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_a_renewed_login_is_read_without_a_restart(tokens, tmp_path, monkeypatch):
    for module in (api, credentials):
        monkeypatch.setattr(module, "is_emulator", lambda _: False)
    monkeypatch.setattr(google.oauth2.credentials, "_GOOGLE_OAUTH2_TOKEN_ENDPOINT", f"{tokens}/token")
    file = tmp_path / "application_default_credentials.json"

    def log_in(token: str) -> None:
        user = {"type": "authorized_user", "client_id": "c", "client_secret": "s"}
        file.write_text(json.dumps({**user, "refresh_token": token}))

    place = Place("p", endpoint=tokens, endpoint_allowed=True, login="file", file=str(file))
    ways = [
        lambda: api.invoke(place, "GET", "projects/p/locations/z/nodes/n", {}, None),
        lambda: call(place, "GET", f"{tokens}/x").json(),
    ]
    for way in ways:
        log_in("expired")
        credentials.forget(place)
        for _ in range(2):
            with pytest.raises(CloudError, match="invalid_rapt") as raised:
                way()
            assert (raised.value.problem.kind, raised.value.problem.hint) == ("auth", LOGIN_COMMAND)
        log_in("renewed")
        assert way()["state"] == "READY"
