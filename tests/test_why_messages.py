"""What a user reads in `why` when a library or the system reports an error: our own sentence, and no raw objects."""

from __future__ import annotations

import errno
import json
import os
import re
import socket
from collections.abc import Iterator
from types import SimpleNamespace
from typing import cast
from unittest.mock import patch

import pytest
import requests
from aiohttp.client_exceptions import ClientConnectorError, ServerDisconnectedError
from aiohttp.client_reqrep import ConnectionKey
from gcsfs.retry import HttpError
from google.auth.exceptions import RefreshError, TransportError
from paramiko.ssh_exception import ChannelException, NoValidConnectionsError, SSHException
from urllib3.exceptions import (
    ConnectTimeoutError,
    MaxRetryError,
    NameResolutionError,
    NewConnectionError,
    ProtocolError,
    ReadTimeoutError,
    SSLError,
)

from tpux.errors import TpuxError, plain_reason
from tpux.lifecycle.turn import Turn
from tpux.model.failures import Failure
from tpux.model.job import Job
from tpux.supervisor.errors import _message
from tpux_gcp import api, errors
from tpux_gcp.credentials import Place
from tpux_gcp.errors import CloudError
from tpux_gcp.lookup import cli_errors
from tpux_ssh import connection, login
from tpux_ssh.keyfiles import KeyFileError
from tpux_ssh.target import Target
from tpux_storage import find_checkpoint

URL = "https://tpu.googleapis.com/v2/projects/p/locations/z/nodes"
RAW = re.compile(
    r"<\w[\w.]* object at|0x[0-9a-f]{6}|Max retries exceeded|\w+Pool\(|\[?Errno|\w+(Error|Exception|Disconnected)\b|"
    r"\('|\{'|Traceback|Caused by|None\b|tcpStatus|\b(GET|POST) http|%24alt|^transient\b"
)


class _Pool:
    host, port, timeout = "tpu.googleapis.com", 443, 30

    def __str__(self) -> str:
        return "HTTPSConnectionPool(host='tpu.googleapis.com', port=443)"


def _requests_errors() -> Iterator[requests.RequestException]:
    """Yield the errors of requests as its adapter makes them of urllib3's."""
    request, pool = requests.Request("GET", URL).prepare(), _Pool()
    refused = NewConnectionError(pool, f"[Errno {errno.ECONNREFUSED}] Connection refused")  # type: ignore[arg-type]
    unknown = NameResolutionError("tpu.googleapis.com", pool, socket.gaierror(-2, "Name or service not known"))  # type: ignore[arg-type]
    for cause in (
        refused,
        unknown,
        ConnectTimeoutError(pool, "Connection to tpu.googleapis.com timed out. (connect timeout=30)"),
        ReadTimeoutError(pool, "/v2", "Read timed out. (read timeout=30)"),  # type: ignore[arg-type]
        SSLError(OSError(1, "certificate verify failed: self-signed certificate")),
        ProtocolError("Connection aborted.", ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")),
    ):
        yield requests.ConnectionError(MaxRetryError(pool, "/v2", cause), request=request)  # type: ignore[arg-type]
        yield requests.ConnectionError(cause, request=request)
    yield requests.ConnectTimeout(MaxRetryError(pool, "/v2", ConnectTimeoutError(pool, "timed out")), request=request)  # type: ignore[arg-type]
    yield requests.ReadTimeout(ReadTimeoutError(pool, "/v2", "Read timed out. (read timeout=30)"), request=request)  # type: ignore[arg-type]
    yield requests.exceptions.ChunkedEncodingError(ProtocolError("Connection broken", OSError(5, "Input/output error")))


def _cloud_messages() -> Iterator[str]:
    place = Place("p", endpoint="https://tpu.googleapis.com", endpoint_allowed=True)
    said = {"message": "The service is currently unavailable.", "status": "UNAVAILABLE", "details": [1, {"@type": "x"}]}
    failures: list[Exception] = [*_requests_errors()]
    failures += [errors.AnswerError(status, json.dumps({"error": said})) for status in (408, 500, 502, 503, 504)]
    failures += [errors.AnswerError(status, "") for status in (200, 502)]
    for error in failures:
        with (
            patch("tpux_gcp.api._session", side_effect=error),
            patch("tpux_gcp.api.RETRY_DEADLINE", 0),
            pytest.raises(CloudError) as caught,
        ):
            api.invoke(place, "GET", "projects/p/locations", {}, None)
        assert caught.value.problem.kind == "transient"
        with pytest.raises(TpuxError) as printed, cli_errors():
            raise caught.value
        yield caught.value.problem.message
        yield str(printed.value)
    yield errors.from_auth_error(
        RefreshError("invalid_grant: Token has been revoked.", {"error": "invalid_grant"})
    ).message
    yield errors.from_auth_error(TransportError(next(_requests_errors()))).message


def _login_messages() -> Iterator[str]:
    target = Target("10.0.0.1", 22, "ann")
    for error in (
        SSHException("Error reading SSH protocol banner"),
        SSHException(),
        EOFError(),
        ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET)),
        NoValidConnectionsError({("10.0.0.1", 22): ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")}),
        ChannelException(2, "Connect failed"),
    ):
        yield str(login._login_error(error, target, None, None))  # type: ignore[arg-type]
    for number in (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ECONNREFUSED, errno.ETIMEDOUT, errno.EMFILE):
        yield str(connection._connect_error(OSError(number, os.strerror(number)), target, 15.0))
    yield str(connection._connect_error(socket.gaierror(-2, "Name or service not known"), target, 15.0))
    yield str(KeyFileError(f"cannot use the key /k: {plain_reason(ValueError('not a valid key'))}"))


def _bucket_messages() -> Iterator[str]:
    """Yield what a search for checkpoints says about the errors of gcsfs, and of what it is made of."""
    job = cast("Job", SimpleNamespace(command=SimpleNamespace(checkpoint=None)))
    key = ConnectionKey("storage.googleapis.com", 443, True, True, None, None, None)
    refused = OSError(errno.ECONNREFUSED, "Connect call failed ('127.0.0.1', 443)")
    several = "Multiple exceptions: [Errno 111] Connect call failed ('::1', 443, 0, 0), [Errno 101] Connect call failed"
    for error in (
        HttpError({"code": 401, "message": "Invalid Credentials"}),
        HttpError(),
        OSError("Forbidden: https://storage.googleapis.com/storage/v1/b/runs/o\nann may not list objects"),
        ClientConnectorError(key, refused),
        ClientConnectorError(key, OSError(errno.ECONNREFUSED, several)),
        ServerDisconnectedError(),
        TimeoutError(),
        RefreshError("invalid_grant: Token has been revoked.", {"error": "invalid_grant"}),
        *_requests_errors(),
        requests.exceptions.ProxyError(),
        TpuxError("no Google Cloud credentials: neither a file nor a metadata server"),
    ):
        with patch("fsspec.filesystem", side_effect=error):
            try:
                answer = find_checkpoint(job, ["gs://runs/a"], {})
            except TpuxError as raised:
                yield f"cannot look for checkpoints in gs://runs/a: {raised.message}"
            else:
                assert isinstance(answer, Failure)
                yield f"cannot look for checkpoints in gs://runs/a: {answer.evidence}"


def _supervisor_messages() -> Iterator[str]:
    turn = cast("Turn", SimpleNamespace(store=SimpleNamespace(home="/home/ann/.tpux")))
    for number in (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EACCES, errno.EMFILE, errno.ESTALE):
        yield _message(turn, OSError(number, os.strerror(number), "/home/ann/.tpux/jobs/ann/000001/events.jsonl"))
        yield _message(turn, OSError(number, os.strerror(number)))
    yield _message(turn, TpuxError("the job's config cannot be read", where="/x"))


def test_no_message_is_a_librarys_own() -> None:
    every = [*_cloud_messages(), *_login_messages(), *_bucket_messages(), *_supervisor_messages()]
    assert len(every) > 90
    for message in every:
        assert not RAW.search(message), message
        assert re.match(
            r"(nothing listens at|https://\S+ cannot be reached|the TPU API (does not answer|gave no answer)|"
            r"the TPU API answered \d+(: \w|$)|unexpected response|cannot look for checkpoints in gs://runs/a: \w|"
            r"could not refresh the credentials|credentials rejected|ann@10\.0\.0\.1|cannot use the key|"
            r"the disk is full: free|waiting for a free descriptor|a file of the job cannot be read or written|"
            r"the job's config|failed to connect)",
            message,
        ), message


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (OSError(28, "No space left on device", "/x"), "/x: No space left on device"),
        (requests.ConnectionError(MaxRetryError(_Pool(), "/v2", SSLError("bad certificate"))), "bad certificate"),  # type: ignore[arg-type]
        (RuntimeError(), "runtime error"),
    ],
)
def test_the_innermost_reason_is_given(error: Exception, text: str) -> None:
    assert plain_reason(error) == text
