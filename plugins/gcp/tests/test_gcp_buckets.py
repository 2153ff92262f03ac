"""The buckets of a config, before anything is created."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tpux import Job, Section
from tpux.fields import Bucket
from tpux.model.sections import JobSection
from tpux_gcp.allocators import tpu_vm
from tpux_gcp.credentials import Place
from tpux_gcp.preflight import check_buckets

BUCKETS = {
    "near": {"location": "US-CENTRAL2", "locationType": "region"},
    "far": {"location": "EUROPE-WEST4", "locationType": "region"},
    "multi": {"location": "US", "locationType": "multi-region"},
    "pair": {"location": "NAM4", "locationType": "dual-region"},
    "own-pair": {"location": "US", "customPlacementConfig": {"dataLocations": ["US-CENTRAL2", "US-WEST1"]}},
    "secret": 403,
    "odd": b"<html>",
}


@pytest.fixture(scope="module")
def place():
    """Cloud Storage on loopback; what it received is in `place.paths`."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert "Authorization" not in self.headers, "no credentials for an emulator"
            answer = BUCKETS.get(self.path.partition("?")[0].removeprefix("/storage/v1/b/"), 404)
            self.send_response(answer if isinstance(answer, int) else 200)
            self.end_headers()
            self.wfile.write(answer if isinstance(answer, bytes) else json.dumps(answer).encode())

        def log_message(self, *_) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield Place(storage_endpoint=f"http://127.0.0.1:{server.server_port}")
        server.shutdown()


def check(place: Place, name: str, *zones: str, any_region: bool = False) -> tuple[str, str, str]:
    (finding,) = check_buckets(place, [Bucket(name, "gcsfuse.bucket_name", any_region)], zones)
    assert finding.where == "gcsfuse.bucket_name"
    return finding.level, finding.message, finding.hint


@pytest.mark.parametrize("name", ["near", "multi", "own-pair"])
def test_a_bucket_in_the_region_of_the_machines(place, name):
    assert check(place, name, "us-central2-b")[0] == "ok"


def test_the_regions_of_a_predefined_pair(place):
    assert check(place, "pair", "us-central1-a", "us-east1-d")[0] == "ok"
    assert check(place, "pair", "us-central2-b")[0] == check(place, "own-pair", "us-east1-d")[0] == "error"


def test_a_bucket_in_another_region(place):
    level, message, hint = check(place, "far", "us-central2-b", "europe-west4-a", "us-east5-a")
    assert level == "error"
    assert message == ("the bucket far is in europe-west4, and the machines are requested in us-central2-b, us-east5-a")
    assert "gcsfuse.allow_cross_region: true" in hint
    assert check(place, "far", "us-central2-b", any_region=True)[0] == "ok"


def test_a_bucket_that_does_not_exist(place):
    assert check(place, "none", "us-central2-b")[:2] == ("error", "there is no bucket none")


def test_a_bucket_that_only_the_workers_may_read(place):
    level, message, _ = check(place, "secret", "us-central2-b")
    assert (level, "may not see in which region the bucket secret is (HTTP 403)" in message) == ("warning", True)


@pytest.mark.parametrize("place_of", [lambda place: place, lambda _: Place(storage_endpoint="http://127.0.0.1:1")])
def test_an_unexpected_answer_or_none_is_a_warning(place, place_of):
    level, message, _ = check(place_of(place), "odd", "us-central2-b")
    assert (level, "cannot check the bucket odd" in message) == ("warning", True)


def test_the_buckets_of_an_emulator_without_cloud_storage_are_reported_as_unchecked():
    (found,) = check_buckets(Place(endpoint="http://127.0.0.1:1"), [Bucket("b", "x")], ["us-central2-b"])
    assert (found.level, found.where) == ("note", "x")
    assert found.message == "the bucket b is not checked: the emulator at http://127.0.0.1:1 has no Cloud Storage"


class FarSection(Section):
    def buckets(self) -> list[Bucket]:
        return [Bucket("far", "data.bucket_name")]


@pytest.mark.parametrize(("modules", "found"), [(("data",), 1), ((), 0)])
def test_preflight_checks_the_buckets_of_the_jobs_modules(drive, tmp_path, monkeypatch, place, modules, found):
    monkeypatch.setenv("TPUX_GCP_STORAGE_ENDPOINT", place.storage_endpoint)
    sections = {"job": JobSection(name="x"), "tpu": drive(zone=["us-central2-b", "europe-west4-a"]).tpu}
    job = Job("000001", "ann", "store", tmp_path, {**sections, "data": FarSection()}, modules=modules)
    job = replace(job, resolved={job.tpu.allocation_mode: tpu_vm.resolve(job=job)})
    messages = [finding.message for finding in tpu_vm.preflight(job=job) if finding.level == "error"]
    assert messages.count("the bucket far is in europe-west4, and the machines are requested in us-central2-b") == found


@pytest.mark.parametrize(("url", "error"), [("gs://none/runs", ["there is no bucket none"]), ("gs://far/runs", [])])
def test_preflight_checks_the_bucket_of_the_output(drive, tmp_path, monkeypatch, place, url, error):
    monkeypatch.setenv("TPUX_GCP_STORAGE_ENDPOINT", place.storage_endpoint)
    sections = {"job": JobSection(name="x", output_dir=url), "tpu": drive().tpu}
    job = Job("000001", "ann", "store", tmp_path, sections)
    job = replace(job, resolved={job.tpu.allocation_mode: tpu_vm.resolve(job=job)})
    found = [finding for finding in tpu_vm.preflight(job=job) if finding.where == "job.output_dir"]
    assert [finding.message for finding in found if finding.level == "error"] == error
    assert found
