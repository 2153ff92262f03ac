"""`tpux quota`: Google's own client library, and a server on loopback that speaks the JSON of these APIs."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest
from typer.testing import CliRunner

from tpux import TpuxError
from tpux_gcp import accounting

METRIC = "tpu.googleapis.com/v4-cores"


def limits(zone: str, most: int) -> dict[str, object]:
    bucket = {"effectiveLimit": str(most), "dimensions": {"zone": zone}}
    default = {"effectiveLimit": "0"}
    return {"metric": METRIC, "displayName": "v4 cores", "consumerQuotaLimits": [{"quotaBuckets": [default, bucket]}]}


SERIES = {
    "metric": {"labels": {"quota_metric": METRIC}},
    "resource": {"labels": {"location": "us-central2-b"}},
    "points": [{"value": {"int64Value": "32"}}, {"value": {"int64Value": "8"}}],
}
REGION = {
    "name": "us-central2",
    "quotas": [
        {"metric": "IN_USE_ADDRESSES", "limit": 8.0, "usage": 4.0},
        {"metric": "SNAPSHOTS", "limit": 8.0, "usage": 4.0},
        {"metric": "INSTANCES", "limit": 24.0, "usage": 0.0},
    ],
}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    requests: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            requests.append(self.path)
            path, query = urlsplit(self.path).path, parse_qs(urlsplit(self.path).query)
            code, answer = 200, dict[str, object]()
            if path == "/v1beta1/projects/p/services/tpu.googleapis.com/consumerQuotaMetrics":
                second = query.get("pageToken") == ["2"]
                answer = {"metrics": [limits("us-west4-a", 16) if second else limits("us-central2-b", 64)]}
                answer |= {} if second else {"nextPageToken": "2"}
            elif path == "/v3/projects/p/timeSeries":
                answer = {"timeSeries": [SERIES]}
            elif path == "/compute/v1/projects/p/regions":
                answer = {"items": [REGION]}
            else:
                code, answer = 403, {"error": {"code": 403, "message": "Service Usage API has not been used"}}
            body = json.dumps(answer).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("TPUX_GCP_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    yield requests
    server.shutdown()
    server.server_close()


def run(*words: str) -> object:
    done = CliRunner().invoke(accounting.app, [*words, "--json"], catch_exceptions=False)
    return json.loads(done.stdout)


def row(place: str, quota: str, limit: float, used: float | None) -> dict[str, object]:
    return {"place": place, "quota": quota, "limit": limit, "used": used}


def test_what_is_used_of_the_quota(asked: list[str]) -> None:
    addresses = row("us-central2", "IN_USE_ADDRESSES", 8, 4)
    cores = row("us-central2-b", "v4 cores", 64, 32)
    assert run("--project", "p") == [addresses, cores]
    assert run("--project", "p", "--zone", "us-central2-b", "--all") == [
        row("us-central2", "INSTANCES", 24, 0),
        addresses,
        cores,
    ]
    assert row("us-west4-a", "v4 cores", 16, None) in run("--project", "p", "--all")  # type: ignore[operator]
    text = CliRunner().invoke(accounting.app, ["--project", "p"]).stdout
    assert text.splitlines()[2].split() == ["us-central2-b", "v4", "cores", "32", "64"]


def test_an_api_that_refuses(asked: list[str]) -> None:
    error = CliRunner().invoke(accounting.app, ["--project", "other"]).exception
    assert isinstance(error, TpuxError)
    assert error.message.startswith("serviceusage.googleapis.com: ")
    assert "gcloud services enable serviceusage.googleapis.com" in error.hint
