"""Which jobs are active, and the leases of machines that tpux did not create."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

import tpux
import tpux.api


@pytest.fixture
def home(monkeypatch, tmp_path):
    monkeypatch.setenv("TPUX_HOME", str(tmp_path))
    tpux.api.store_id()
    return tmp_path


def labels(job: str) -> dict[str, str]:
    return {"tpux-store": tpux.api.store_id(), "tpux-user": "ann", "tpux-job": job}


def write_job(home, job: str, *events: dict[str, object]) -> None:
    directory = home / "jobs" / "ann" / job
    directory.mkdir(parents=True)
    created = {"type": "created", "at": 1.0, "id": job, "user": "ann", "name": "x"}
    (directory / "events.jsonl").write_text("".join(json.dumps(e) + "\n" for e in (created, *events)))


def test_a_job_is_active_until_it_has_ended_and_released_its_machines(home):
    write_job(home, "000001")
    requested = {"type": "allocation-requested", "at": 1.0, "name": "n", "allocator": "a"}
    ended = [{"type": "state-changed", "at": 2.0, "to": to} for to in ("provisioning", "failed")]
    write_job(home, "000002", ended[0], requested, ended[1])
    write_job(home, "000003", ended[0], requested, ended[1], {"type": "released", "at": 3.0})
    held = [tpux.api.is_active(job) for job in ("000001", "000002", "000003", "000004")]
    assert held == [True, True, False, False]


def test_a_job_that_cannot_be_read_counts_as_active(home):
    (home / "jobs" / "ann" / "000001").mkdir(parents=True)
    assert tpux.api.is_active("000001")


def test_one_of_many_gets_the_lease(home):
    jobs = [f"{number:06d}" for number in range(1, 17)]
    for job in jobs:
        write_job(home, job)
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda job: tpux.acquire_lease("projects/p/nodes/n", labels(job)), jobs))
    assert answers.count("") == 1
    winner = jobs[answers.index("")]
    assert set(answers) == {"", winner}
    assert tpux.api.lease_holder("projects/p/nodes/n") == winner
    assert tpux.acquire_lease("projects/p/nodes/other", labels(jobs[0])) == ""


def test_a_lease_is_released_by_its_holder_alone_and_is_void_once_that_is_gone(home):
    write_job(home, "000001")
    assert tpux.acquire_lease("n", labels("000001")) == tpux.acquire_lease("n", labels("000001")) == ""
    tpux.release_lease("n", labels("000002"))
    assert tpux.api.lease_holder("n") == "000001"
    tpux.release_lease("n", labels("000001"))
    assert tpux.api.lease_holder("n") == ""
    assert tpux.acquire_lease("n", labels("000009")) == ""  # a job that does not exist
    assert tpux.api.lease_holder("n") == ""
    assert tpux.acquire_lease("n", labels("000001")) == ""
