"""Jobs that wait for other jobs: until these have succeeded, or until fewer of their group run."""

from __future__ import annotations

import pytest

from tests.world import World
from tpux.lifecycle.create import create_job
from tpux.model.events import StateChanged
from tpux.store import groups


def gated(tpux, *words):
    """Create a job that runs until the file that its name has exists."""
    return tpux.create(f"command: {{cmd: 'while ! [ -e {tpux.work}/go-$TPUX_JOB_ID ]; do sleep 0.1; done'}}\n", *words)


def let_end(tpux, job):
    (tpux.work / f"go-{job}").touch()


def test_a_job_starts_once_others_have_succeeded(tpux):
    first, second = gated(tpux), gated(tpux)
    third = tpux.create("command: {cmd: 'true'}\n", f"job.after=[{int(first)},{int(second)}]")
    tpux.until(lambda: tpux.show(third)["why"] == "waits for job 1 to succeed")
    let_end(tpux, first)
    tpux.until(lambda: tpux.show(third)["why"] == "waits for job 2 to succeed")
    assert tpux.show(third)["state"] == "pending"
    assert not tpux.events(third, "allocation-requested")
    let_end(tpux, second)
    tpux("wait", third)
    ends = [event["at"] for event in tpux.events(second, "state-changed") if event["to"] == "succeeded"]
    assert tpux.events(third, "allocation-requested")[0]["at"] >= ends[0]


def test_a_job_after_one_that_failed_says_so_until_that_was_resumed(tpux):
    first = tpux.create("command: {cmd: 'exit 3'}\n")
    tpux("wait", first, code=100)
    second = tpux.create("command: {cmd: 'true'}\n", "job.after=1")
    tpux.until(lambda: tpux.show(second)["why"] == "waits for job 1 to succeed, which has failed")
    assert "tpux resume 1" in tpux("show", second).stdout
    tpux("resume", first, "command.cmd=echo ok")
    tpux("wait", second)


def test_a_job_after_one_that_was_deleted_can_start_without_it(tpux):
    first = gated(tpux)
    second = tpux.create("command: {cmd: 'true'}\n", "job.after=[1]")
    tpux("delete", first, "-y")
    tpux.until(lambda: "waits for job 1, which was deleted" in tpux.show(second)["why"])
    tpux("stop", second)
    tpux("resume", second, "job.after=[]")
    tpux("wait", second)


def test_a_job_after_one_that_does_not_exist_or_after_itself_is_an_error(tpux):
    config = tpux.config("command: {cmd: 'exit 3'}\n")
    assert "there is no job 7" in tpux("create", config, "job.after=[7]", code=2).stderr
    job = tpux.create("command: {cmd: 'exit 3'}\n")
    tpux("wait", job, code=100)
    assert "job 1 cannot wait for itself" in tpux("rerun", job, "job.after=1", code=2).stderr


def test_a_group_runs_as_many_jobs_as_it_may_lowest_ids_first(tpux):
    group = "job.group={name: g, max_running: 2}"
    jobs = [gated(tpux, group) for _ in range(5)]
    alone = gated(tpux, "job.group.name=other")
    tpux.until_state(alone, "running")
    tpux.until_state(jobs[1], "running")
    assert [tpux.show(job)["state"] for job in jobs] == ["running"] * 2 + ["pending"] * 3
    tpux.until(lambda: tpux.show(jobs[4])["why"] == "waits for its turn in the group g, of which 2 may run")
    tpux("stop", jobs[2])  # one that waits: the next takes its place in the line
    let_end(tpux, jobs[0])
    tpux.until_state(jobs[3], "running")
    assert tpux.show(jobs[4])["state"] == "pending"
    tpux.kill_supervisor()
    tpux("list")
    let_end(tpux, jobs[1])
    tpux.until_state(jobs[4], "running")
    for job in (jobs[3], jobs[4], alone):
        let_end(tpux, job)
        tpux("wait", job)
    assert [tpux.show(job)["state"] for job in jobs] == ["succeeded"] * 2 + ["stopped"] + ["succeeded"] * 2


def test_a_killed_supervisor_starts_no_more_than_may_run(tpux):
    jobs = [gated(tpux, "job.group={name: g}") for _ in range(3)]
    for job in jobs:
        tpux.until_state(job, "running")
        tpux.kill_supervisor()
        tpux("list")
        states = [tpux.show(other)["state"] for other in jobs]
        assert states.count("running") == 1, states
        let_end(tpux, job)
        tpux("wait", job)


def test_the_group_is_checked_in_the_config(tpux):
    config = tpux.config("command: {cmd: 'true'}\n")
    for wrong in (
        "job.group={name: a/b}",
        "job.group={max_running: 2}",
        "job.group={name: a, max_running: 0}",
        "job.after=x",
    ):
        assert "job." in tpux("config", "check", config, wrong, code=2).stderr


# --- step by step, in this process ----------------------------------------------------------------


GROUP = "job: {group: {name: g}}\ncommand: {cmd: 'exit 1'}"


@pytest.fixture
def world(tmp_path, monkeypatch):
    return World(tmp_path, monkeypatch)


def other(world):
    config = world.path / "other.yaml"
    config.write_text(GROUP)
    return create_job(world.store, config, ["tpu.allocation_mode=cloud"], warn=print, plugins=world.plugins)


def test_a_job_that_is_resumed_on_its_machines_counts_in_its_group(world):
    world.create(GROUP)
    world.until("failed")
    second, third = other(world), other(world)
    group = world.store.supervisor / "groups" / "g.json"
    group.unlink()
    assert groups.enter(world.store, "g", 1, second.id) is None
    world.request("resume")
    world.until(lambda: world.state.attempt == 2)
    assert groups.enter(world.store, "g", 2, third.id) == 0


def test_a_job_after_one_that_cannot_be_read_waits_and_says_so(world):
    first = other(world)
    world.create("job: {after: [1]}\ncommand: {cmd: 'true'}")
    first.events_path.write_text("{}\n")
    (first.directory / "state.json").unlink()
    world.steps()
    assert (world.state.state, world.state.why) == ("pending", "waits for job 1, which cannot be read")
    assert "repair" in world.state.hint


def test_a_job_that_waits_for_another_does_not_delay_its_group(world):
    other(world)
    world.create("job: {after: [1], group: {name: g}}\ncommand: {cmd: 'true'}")
    third = other(world)
    assert groups.enter(world.store, "g", 1, world.job) is None
    assert groups.enter(world.store, "g", 1, third.id) == 0
    world.steps()
    assert world.state.why == "waits for job 1 to succeed"
    assert groups.enter(world.store, "g", 1, third.id) is None


def test_a_job_starts_after_one_that_succeeded_and_was_deleted(world):
    first = other(world)
    world.create("job: {after: [1]}\ncommand: {cmd: 'true'}")
    succeed(first)
    world.store.supervisor.mkdir(parents=True, exist_ok=True)
    (world.store.supervisor / "succeeded.jsonl").write_text('{"job": "00\n')  # torn by a loss of power
    world.store.remove(first)
    world.until("succeeded")
    third = world.path / "third.yaml"
    third.write_text("job: {after: [1]}\ncommand: {cmd: 'true'}")
    create_job(world.store, third, ["tpu.allocation_mode=cloud"], warn=print, plugins=world.plugins)


def succeed(record):
    assert record.acquire()
    for at, to in enumerate(("provisioning", "setting-up", "running", "succeeded")):
        record.write(StateChanged(to=to), float(at))
    record.lock.release()
