"""`tpux storage usage`: Google's own client library, and a server on loopback that speaks the JSON of these APIs."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from tpux import TpuxError, UsageError
from tpux_storage import cli

GIB = 1024**3


def series(bucket: str, storage_class: str, kind: str, value: float, location: str = "US-CENTRAL2"):
    newest, older = {"value": {"doubleValue": value}}, {"value": {"doubleValue": 1.0}}
    return {
        "metric": {"labels": {"storage_class": storage_class, "type": kind}},
        "resource": {"labels": {"bucket_name": bucket, "location": location}},
        "points": [newest, older],
    }


BYTES = [
    series("runs", "REGIONAL", "live-object", 100 * GIB),
    series("runs", "REGIONAL", "soft-deleted-object", 300 * GIB),
    series("old", "ARCHIVE", "live-object", 10 * GIB, "ASIA-EAST1"),
]
COUNT = [series("runs", "REGIONAL", "live-object", 3.0), series("runs", "REGIONAL", "soft-deleted-object", 1998.0)]


@pytest.fixture
def cloud(google_apis):
    def monitoring(query, _):
        return {"timeSeries": BYTES if "storage/v2/total_bytes" in query["filter"] else COUNT}

    def objects(query, _):
        if query.get("softDeleted") == "true":
            return {"items": [{"name": "runs/1/old", "size": "300"}]}
        assert query["versions"] == "true"
        if query.get("pageToken") == "2":
            return {"items": [{"name": "readme", "size": "1"}]}
        live = [{"name": "runs/1/a", "size": "10"}, {"name": "runs/2/a", "size": "20"}]
        return {"items": [*live, {"name": "runs/2/a", "size": "5", "timeDeleted": "2026"}], "nextPageToken": "2"}

    google_apis.answers = {
        "GET /v3/projects/p/timeSeries": monitoring,
        "GET /storage/v1/b/runs/o": objects,
    }
    return google_apis


def run(*words: str):
    return CliRunner().invoke(cli.app, ["usage", "--project", "p", *words])


def test_bytes_and_cost_by_bucket_class_and_type(cloud, tmp_path):
    found = json.loads(run("--json").stdout)
    assert [(one["bucket"], one["type"], one["bytes"], one["objects"], one["cost"]) for one in found] == [
        ("old", "live-object", 10 * GIB, None, None),
        ("runs", "soft-deleted-object", 300 * GIB, 1998, pytest.approx(6.0)),
        ("runs", "live-object", 100 * GIB, 3, pytest.approx(2.0)),
    ]
    lines = run().stdout.splitlines()
    assert lines[1].split() == ["old", "asia-east1", "ARCHIVE", "live", "11", "GB", "-"]
    assert lines[2].split() == ["runs", "us-central2", "REGIONAL", "soft-deleted", "322", "GB", "6.00"]
    assert "about 8.00 USD a month, without those whose price is unknown" in run().stderr
    prices = tmp_path / "prices.yaml"
    prices.write_text("ARCHIVE asia-east1: 0.5\nSTANDARD: 0.01\n")
    costs = [one["cost"] for one in json.loads(run("--json", "--prices", str(prices)).stdout)]
    assert costs == [5.0, 3.0, 1.0]
    assert not [url for url in cloud.requests if "/storage/" in url.partition("?")[0]], "objects are not listed"


def test_folders_are_listed_after_a_question_that_says_how_many_objects_there_are(cloud):
    words = ("--bucket", "runs", "--folders")
    refused = run(*words)
    assert isinstance(refused.exception, UsageError)
    assert "it lists 2001 objects in 1 bucket, 3 requests that Google charges for" in refused.stderr
    assert not [url for url in cloud.requests if "/o?" in url]
    assert json.loads(run(*words, "--json", "-y").stdout) == [
        {"bucket": "runs", "folder": "runs/", "type": "soft-deleted-object", "objects": 1, "bytes": 300},
        {"bucket": "runs", "folder": "runs/", "type": "live-object", "objects": 2, "bytes": 30},
        {"bucket": "runs", "folder": "runs/", "type": "noncurrent-object", "objects": 1, "bytes": 5},
        {"bucket": "runs", "folder": ".", "type": "live-object", "objects": 1, "bytes": 1},
    ]
    assert "runs    runs/   soft-deleted  1" in run(*words, "-y").stdout


def test_a_bucket_that_is_not_there_and_an_api_that_refuses(cloud):
    error = run("--bucket", "no").exception
    assert isinstance(error, UsageError)
    assert "bucket no in project p" in error.message
    cloud.answers.clear()
    error = run().exception
    assert isinstance(error, TpuxError)
    assert "gcloud services enable monitoring.googleapis.com" in error.hint
