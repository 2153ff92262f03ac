"""Which jobs are active, and the leases of machines that tpux did not create."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tpux.store import files, leases


@pytest.fixture
def home(monkeypatch, tmp_path):
    monkeypatch.setenv("TPUX_HOME", str(tmp_path))
    leases.store_id()
    return tmp_path


def labels(job: str) -> dict[str, str]:
    return {"tpux-store": leases.store_id(), "tpux-user": "ann", "tpux-job": job}


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
    held = [leases.is_active(job) for job in ("000001", "000002", "000003", "000004")]
    assert held == [True, True, False, False]


def test_a_job_is_active_while_another_holds_the_machines_that_it_has_taken_over(home):
    write_job(home, "000001", {"type": "state-changed", "at": 2.0, "to": "failed"})
    write_job(home, "000003", {"type": "state-changed", "at": 2.0, "to": "failed"})
    machines = {"name": "n", "transport": "t", "workers": []}
    taken = {"type": "taken-over", "at": 2.0, "job": "000001", "name": "n", "allocation": machines}
    begun, *stopped = ({"type": "state-changed", "at": 3.0, "to": to} for to in ("provisioning", "stopping", "stopped"))
    of_both = [{"tpux-job": "000001"}, {"tpux-job": "000002"}]
    write_job(home, "000002", begun, {**taken, "saved_state": {}, "previous_owners": of_both[:1]}, *stopped)
    events = home / "jobs/ann/000002/events.jsonl"
    events.write_text(events.read_text().replace('"name": "x"', '"name": "x", "takes_over": "000001"', 1))
    assert [leases.is_active(job) for job in ("000001", "000002", "000003")] == [True, True, False]
    write_job(home, "000004", begun, {**taken, "job": "000002", "saved_state": {}, "previous_owners": of_both})
    chain = home / "jobs/ann/000004/events.jsonl"
    chain.write_text(chain.read_text().replace('"name": "x"', '"name": "x", "takes_over": "000002"', 1))
    with events.open("a") as file:
        file.write(json.dumps({"type": "transferred", "at": 4.0, "to": "000004", "token": "ab"}) + "\n")
    shutil.rmtree(home / "jobs/ann/000001")
    assert [leases.is_active(job) for job in ("000001", "000002", "000003", "000004")] == [True, True, False, True]
    with chain.open("a") as file:
        file.write(json.dumps({"type": "allocated", "at": 4.0, "allocation": machines}) + "\n")
    assert [leases.is_active(job) for job in ("000001", "000002", "000004")] == [True, True, True]
    with chain.open("a") as file:
        file.write(json.dumps({"type": "released", "at": 5.0}) + "\n")
    assert [leases.is_active(job) for job in ("000001", "000002", "000004")] == [False, False, True]


def test_a_job_that_cannot_be_read_counts_as_active(home):
    (home / "jobs" / "ann" / "000001").mkdir(parents=True)
    assert leases.is_active("000001")


def test_one_of_many_gets_the_lease(home):
    jobs = [f"{number:06d}" for number in range(1, 17)]
    for job in jobs:
        write_job(home, job)
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda job: leases.acquire("projects/p/nodes/n", labels(job)), jobs))
    assert answers.count("") == 1
    winner = jobs[answers.index("")]
    assert set(answers) == {"", winner}
    assert leases.holder_of("projects/p/nodes/n") == winner
    assert leases.acquire("projects/p/nodes/other", labels(jobs[0])) == ""


def test_a_lease_is_released_by_its_holder_alone_and_is_void_once_that_is_gone(home):
    write_job(home, "000001")
    assert leases.acquire("n", labels("000001")) == leases.acquire("n", labels("000001")) == ""
    leases.release("n", labels("000002"))
    assert leases.holder_of("n") == "000001"
    leases.release("n", labels("000001"))
    assert leases.holder_of("n") == ""
    assert leases.acquire("n", labels("000009")) == ""  # a job that does not exist
    assert leases.holder_of("n") == ""
    assert leases.acquire("n", labels("000001")) == ""


# --- several machines together ------------------------------------------------------------------

MACHINES = ("a", "b", "c", "d")
SETS = st.sets(st.sampled_from(MACHINES), min_size=1)


def held_by(job: str) -> set[str]:
    return {machine for machine in MACHINES if leases.holder_of(machine) == job}


def test_several_leases_are_acquired_together_or_not_at_all(home):
    for job in ("000001", "000002"):
        write_job(home, job)
    assert leases.acquire_all(["c", "a", "a"], labels("000001")) == {}
    assert leases.acquire_all(["c", "a"], labels("000001")) == {}
    assert leases.acquire("d", labels("000002")) == ""
    assert leases.acquire_all(["d", "c", "b", "a"], labels("000002")) == {"a": "000001", "c": "000001"}
    assert held_by("000002") == {"d"}  # what it held before remains
    assert leases.acquire_all([], labels("000002")) == {}
    for machine in ("a", "c"):
        leases.release(machine, labels("000001"))
    assert leases.acquire_all(MACHINES, labels("000002")) == {}
    assert held_by("000002") == set(MACHINES)
    assert held_by("000001") == set()


class Died(BaseException):
    """The process is killed here."""


@settings(max_examples=min(settings.default.max_examples, 100))  # each syncs files
@given(
    before=st.sets(st.sampled_from(MACHINES)), wanted=SETS, writes=st.lists(st.integers(0, 7), min_size=1, max_size=3)
)
def test_a_process_that_dies_while_it_acquires_holds_all_or_none(monkeypatch, before, wanted, writes):
    with TemporaryDirectory() as directory, monkeypatch.context() as patch:
        home = Path(directory)
        patch.setenv("TPUX_HOME", directory)
        leases.store_id()
        for job in ("000001", "000002"):
            write_job(home, job)
        leases.acquire_all(before, labels("000001"))
        for allowed in writes:  # it dies, is restarted, and dies again
            left = iter(range(allowed))

            def write(*args, left=left, write_atomic=files.write_atomic, **options):
                if next(left, None) is None:
                    raise Died
                write_atomic(*args, **options)

            with patch.context() as until_it_dies:
                until_it_dies.setattr(files, "write_atomic", write)
                with suppress(Died):
                    leases.acquire_all(wanted, labels("000001"))
            assert held_by("000001") in (before, before | wanted)
        rest = set(MACHINES) - held_by("000001")
        assert leases.acquire_all(rest, labels("000002")) == {}
        for machine in rest:
            leases.release(machine, labels("000002"))
        assert leases.acquire_all(wanted, labels("000001")) == {}
        assert held_by("000001") == before | wanted
        for machine in MACHINES:
            leases.release(machine, labels("000001"))
        assert leases.acquire_all(MACHINES, labels("000002")) == {}


USE_MACHINES = """
import json, os, sys
from pathlib import Path

from tpux.store import leases

job, used, rounds = sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3])
labels = {"tpux-store": leases.store_id(), "tpux-user": "ann", "tpux-job": job}
for machines in rounds:
    while others := leases.acquire_all(machines, labels):
        assert set(others) <= set(machines) and job not in others.values()
    for machine in machines:
        os.close(os.open(used / machine, os.O_CREAT | os.O_EXCL))
    for machine in machines:
        (used / machine).unlink()
        leases.release(machine, labels)
"""
ROUNDS = st.lists(SETS.map(sorted).flatmap(st.permutations), min_size=5, max_size=20)


@settings(max_examples=min(settings.default.max_examples // 6, 20))  # each starts two processes
@given(rounds=st.tuples(ROUNDS, ROUNDS))
def test_two_processes_that_need_some_of_the_same_machines_never_block_each_other(monkeypatch, rounds):
    with TemporaryDirectory() as directory, monkeypatch.context() as patch:
        patch.setenv("TPUX_HOME", directory)
        leases.store_id()
        used = Path(directory) / "used"
        used.mkdir()
        processes = []
        for number, machines in enumerate(rounds, 1):
            write_job(Path(directory), f"{number:06d}")
            command = [sys.executable, "-c", USE_MACHINES, f"{number:06d}", str(used), json.dumps(machines)]
            processes.append(subprocess.Popen(command))
        assert [process.wait(120) for process in processes] == [0, 0]


def test_a_hold_keeps_others_out_until_its_end_and_passes_to_jobs_of_its_user(monkeypatch, tmp_path):
    monkeypatch.setenv("TPUX_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TPUX_USER", "ann")
    ann = {"tpux-store": leases.store_id(), "tpux-user": "ann", "tpux-job": "000001"}
    monkeypatch.setattr(leases, "is_active", lambda job: job == "000001")
    bob = {**ann, "tpux-user": "bob"}
    end = time.time() + 3600
    assert leases.hold(["m", "n"], until=end, note="debugging") == {}
    assert leases.acquire_all(["m"], bob) == {"m": leases.HOLD}
    assert leases.holder_of("n") == leases.HOLD
    assert leases.lease_of("m")["note"] == "debugging"
    monkeypatch.setenv("TPUX_USER", "bob")
    assert leases.hold(["m"], until=end) == {"m": leases.HOLD}
    assert not leases.end_hold(["m"])
    monkeypatch.setenv("TPUX_USER", "ann")
    assert leases.hold(["m"], until=end + 60, note="more") == {}
    assert (leases.lease_of("m")["until"], leases.lease_of("m")["note"]) == (end + 60, "more")
    assert leases.acquire_all(["m"], ann) == {}
    assert leases.holder_of("m") == "000001"
    assert leases.hold(["m"], until=end) == {"m": "000001"}
    assert leases.hold(["n"], until=time.time()) == {}, "it has ended at once"
    assert leases.holder_of("n") == ""
    assert leases.lease_of("n") == {}
    assert leases.acquire_all(["n"], bob) == {}
