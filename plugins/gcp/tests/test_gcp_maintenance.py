"""Planned maintenance and symptoms: what Google reports, who is told, and the notice before a maintenance."""

from __future__ import annotations

import datetime as dt
import http.server
import json
import os
import subprocess
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tpux import Job, TpuxError
from tpux.model.sections import JobSection
from tpux_gcp.allocators import queued_resources, tpu_vm
from tpux_gcp.api import Api
from tpux_gcp.messages import parse_node
from tpux_gcp.project import find_place
from tpux_gcp.reports import findings
from tpux_gcp.resource import Location
from tpux_testing.steps import steps_of

NODE = {"name": "projects/p/locations/us-central2-b/nodes/n", "state": "READY"}
MODES = pytest.mark.parametrize("mode", ["tpu-vm", "queued-resources"])
ALLOCATORS = (tpu_vm, queued_resources)


def said(hook, job, worker):
    """Return what a hook says of a worker, of those allocators that answer."""
    answers = [getattr(each, hook)(job=job, worker=worker) for each in ALLOCATORS]
    return [finding for steps in answers if steps for finding in steps_of(steps).value]


@MODES
def test_a_planned_maintenance_and_symptoms_are_reported(drive, cloud, mode, tmp_path):
    driver = drive(mode=mode, accelerator="v4-16")
    workers = driver.ready().allocation.workers
    [node] = [node.partition("/")[2] for node in driver.nodes()]
    job = Job("000001", "ann", "store", tmp_path, {"job": JobSection(name="x"), "tpu": driver.tpu})
    job = Job(**{**job.__dict__, "resolved": {mode: driver.resolved}})
    assert said("monitor", job, workers[0]) == []
    cloud.symptom(node, "HBM_OUT_OF_MEMORY")
    cloud.maintenance(node, notice=3600)
    deadline = time.monotonic() + 30
    while len(found := said("monitor", job, workers[0])) < 2:
        assert time.monotonic() < deadline, found
        time.sleep(0.05)
    assert [(each.level, each.where) for each in found] == [
        ("warning", "maintenance"),
        ("warning", "symptom HBM_OUT_OF_MEMORY"),
    ]
    assert f"{node}: a maintenance is planned for 20" in found[0].message
    assert "HBM_OUT_OF_MEMORY of worker 0 at 20" in found[1].message
    assert said("diagnose", job, workers[0]) == found
    assert said("monitor", job, workers[1]) == [], "the first worker of a slice speaks for it"
    cloud.error(503, "nodes.get")
    with pytest.raises(TpuxError, match="503"):
        said("monitor", job, workers[0])
    cloud.clear()
    driver.release()


@pytest.mark.parametrize(
    ("message", "texts"),
    [
        ({}, []),
        ({"upcomingMaintenance": {}, "symptoms": [{}]}, []),
        ({"upcomingMaintenance": {"maintenanceStatus": "UNKNOWN"}}, []),
        ({"upcomingMaintenance": {"maintenanceStatus": "PENDING"}}, ["n: a maintenance is planned"]),
        (
            {"upcomingMaintenance": {"windowStartTime": "2026-11-15T04:00:00.000001Z", "type": "NEW"}},
            ["n: a maintenance is planned for 2026-11-15 04:00:00 UTC"],
        ),
        ({"upcomingMaintenance": {"maintenanceStatus": "ONGOING"}}, ["n: a maintenance is under way"]),
        (
            {"symptoms": [{"symptomType": "MELTED", "details": "hot"}, {"symptomType": "SYMPTOM_TYPE_UNSPECIFIED"}]},
            ["n: Google reports MELTED: hot"],
        ),
        ({"symptoms": "none", "upcomingMaintenance": "soon"}, []),
    ],
)
def test_what_the_api_may_say(message, texts):
    assert [finding.message for finding in findings(parse_node({**NODE, **message}))] == texts


@contextmanager
def metadata_server(values: dict[str, str]) -> Iterator[str]:
    """Serve metadata of an instance by path; `wait_for_change` waits until the values are other ones."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path, _, query = self.path.partition("?")
            key = path.removeprefix("/computeMetadata/v1/instance/")
            etag = f"E{zlib.crc32(values.get(key, '').encode())}"
            known = query.rpartition("last_etag=")[2] if "wait_for_change" in query else "NONE"
            timeout = float(query.partition("timeout_sec=")[2].partition("&")[0] or 0)
            deadline = time.monotonic() + timeout
            while known == etag and time.monotonic() < deadline:
                time.sleep(0.05)
            self.send_response(200 if key in values else 404)
            self.send_header("ETag", etag)
            self.end_headers()
            self.wfile.write(values.get(key, "not found").encode())

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def window(seconds: float, status: str = "PENDING") -> str:
    """Return what the metadata server says of a maintenance that begins in so many seconds."""
    start = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=seconds)
    return json.dumps({"windowStartTime": start.strftime("%Y-%m-%dT%H:%M:%SZ"), "maintenanceStatus": status}, indent=1)


@pytest.fixture
def notice(drive):
    """Return a function that gives a job's notice command."""
    made = []

    def of(**tpu: object) -> str:
        made.append(drive(**tpu))
        return made[-1].ready().allocation.notice

    yield of
    for driver in made:
        driver.release()


def run(command: str, server: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "GCE_METADATA_HOST": server}
    return subprocess.run(["sh", "-c", command], capture_output=True, text=True, env=environ, timeout=60)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"preempted": "TRUE"}, "instance/preempted: TRUE"),
        ({"preempted": "FALSE", "upcoming-maintenance": window(20)}, "that a maintenance begins at 20"),
        ({"preempted": "FALSE", "upcoming-maintenance": window(-5)}, "that a maintenance begins at 20"),
        ({"preempted": "FALSE", "upcoming-maintenance": window(9e9, "ONGOING")}, "that a maintenance is under way"),
        ({"preempted": "TRUE", "upcoming-maintenance": window(9000)}, "instance/preempted: TRUE"),
        ({"preempted": "TRUE", "upcoming-maintenance": '{"error": "no notifications"}'}, "instance/preempted: TRUE"),
        ({"preempted": "TRUE", "upcoming-maintenance": "<html>"}, "instance/preempted: TRUE"),
    ],
)
def test_the_notice_before_a_maintenance(notice, values, text):
    command = notice(maintenance_notice=30)
    with metadata_server(values) as server:
        done = run(command, server)
    assert (done.returncode, text in done.stdout) == (0, True), done


def test_the_notice_waits_until_a_maintenance_is_near(notice):
    """It ends without one when the time has come, and says so when it is run again."""
    command = notice(maintenance_notice=30)
    with metadata_server({"preempted": "FALSE", "upcoming-maintenance": window(33)}) as server:
        waited = run(command, server)
        assert (waited.returncode, waited.stdout) == (1, "")
        assert "that a maintenance begins" in run(command, server).stdout


def test_a_borrowed_tpu_is_not_given_up_before_a_maintenance(cloud, drive):
    """Nobody would replace it, so each attempt would get the notice at once."""
    cloud_api = Api(find_place())
    node = {"acceleratorType": "v4-8", "runtimeVersion": "tpu-ubuntu2204-base"}
    cloud_api.create_node(Location("emulated", "us-central2-b"), "by-hand", node)
    job = drive(name="by-hand")
    allocation = job.ready().allocation
    assert allocation.borrowed
    with metadata_server({"preempted": "TRUE", "upcoming-maintenance": window(5)}) as server:
        assert "instance/preempted: TRUE" in run(allocation.notice, server).stdout
    job.release()
