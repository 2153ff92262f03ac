"""`tpux quota`: Google's own client library, and a server on loopback that speaks the JSON of these APIs."""

from __future__ import annotations

import json

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
def asked(google_apis):
    def metrics(query, _):
        if query.get("pageToken") == "2":
            return {"metrics": [limits("us-west4-a", 16)]}
        return {"metrics": [limits("us-central2-b", 64)], "nextPageToken": "2"}

    google_apis.answers = {
        "GET /v1beta1/projects/p/services/tpu.googleapis.com/consumerQuotaMetrics": metrics,
        "GET /v3/projects/p/timeSeries": {"timeSeries": [SERIES]},
        "GET /compute/v1/projects/p/regions": {"items": [REGION]},
    }
    return google_apis.requests


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
