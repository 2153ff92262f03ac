"""Jobs on a real cluster: they end, are preempted, reach the time limit, are cancelled, and lose what they need."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from contextlib import suppress
from datetime import datetime
from pathlib import Path

import pytest
from slurm_support import LONG, Jobs, wait_for

from tpux import TpuxError

pytestmark = [pytest.mark.system, pytest.mark.timeout(240)]


def test_four_workers_succeed_with_their_ranks(jobs: Jobs) -> None:
    """The program sees the rank that Slurm gives its node, its node's home, and the user's."""
    script = 'echo "$SLURM_PROCID $TPUX_WORKER $SLURM_NTASKS $HOME $TPUX_USER_HOME" >$S/rank-$SLURM_PROCID; exit 0'
    job = jobs.start(script, nodes=4)
    jobs.until(job, "succeeded")
    lines = [(jobs.shared / f"rank-{rank}").read_text().split() for rank in range(4)]
    assert [line[:3] for line in lines] == [[str(rank), str(rank), "4"] for rank in range(4)]
    assert len({line[3] for line in lines}) == 4
    assert {line[4] for line in lines} == {jobs.cli.env["HOME"]}


def test_preemption(jobs: Jobs) -> None:
    """The program gets one SIGTERM at once, saves, and a new Slurm job resumes it from there."""
    job = jobs.start(nodes=4)
    jobs.started(worker=3)
    jobs.started()
    high = jobs.slurm.run(
        *["sbatch", "--parsable", "-p", "high", "-N4", "--exclusive", "--output=/dev/null", "--wrap"], "sleep 2"
    )
    wait_for(jobs.terms, "SIGTERM")
    text = jobs.slurm.run("scontrol", "-o", "show", "job", slurm_id(jobs))
    preempted = re.search(r"PreemptTime=(\S+)", text)
    assert preempted is not None
    after = float((jobs.shared / "termed").read_text()) - datetime.fromisoformat(preempted[1]).timestamp()
    assert after < 2  # PreemptTime is in whole seconds
    (_, first, _), (attempt, resumed, _) = jobs.started(2, timeout=LONG)
    assert (first, attempt) == ("0", "2")
    assert int(resumed) > 0
    jobs.finish()
    jobs.until(job, "succeeded")
    assert [jobs.terms(worker) for worker in range(4)] == [1, 1, 1, 1]
    ended = [event for event in jobs.events(job) if event["type"] == "attempt-ended"]
    assert ended[0]["failure"]["kind"] == "preempted", ended  # type: ignore[index,call-overload]
    assert "Slurm" in json.dumps(ended[0])
    assert high not in jobs.slurm.jobs()


def test_time_limit(jobs: Jobs) -> None:
    """The program gets SIGTERM before the limit, and the job resumes."""
    job = jobs.start(time=1)
    jobs.started()
    wait_for(jobs.terms, "SIGTERM", 90)
    assert "RUNNING" in jobs.slurm.run("squeue", "-h", "-o", "%T")
    assert jobs.started(2, timeout=120)[1][0] == "2"
    jobs.finish()
    jobs.until(job, "succeeded")
    ended = [event for event in jobs.events(job) if event["type"] == "attempt-ended"]
    assert ended[0]["failure"]["kind"] == "preempted", ended  # type: ignore[index,call-overload]


def test_cancelled_by_hand(jobs: Jobs) -> None:
    """No requeue is possible; after scancel the job fails, names Slurm's state, and can be resumed."""
    job = jobs.start()
    jobs.started()
    with pytest.raises(TpuxError, match="Requested operation is presently disabled"):
        jobs.slurm.run("scontrol", "requeue", slurm_id(jobs))
    jobs.slurm.run("scancel", slurm_id(jobs))
    shown = json.dumps(jobs.until(job, "failed"))
    assert "CANCELLED" in shown
    assert "cancelled, and not by tpux" in shown
    assert "tpux resume" in jobs.cli("show", job).stdout
    assert not jobs.slurm.jobs()
    jobs.cli("resume", job)
    jobs.started(2)
    jobs.finish()
    jobs.until(job, "succeeded")


def test_cancelled_by_hand_while_it_waits_for_nodes(jobs: Jobs) -> None:
    """It is not submitted again."""
    job = jobs.start("true", sbatch=["--hold"])
    held = wait_for(jobs.slurm.jobs, "the Slurm job")
    wait_for(lambda: "JobHeldUser" in str(jobs.show(job).get("why")), "why it waits")
    jobs.slurm.run("scancel", *held)
    assert "cancelled, and not by tpux" in json.dumps(jobs.until(job, "failed"))
    assert not jobs.slurm.jobs()


def test_killed_slurmd(jobs: Jobs) -> None:
    """A node that does not answer ends the attempt; once it is back, only the new program runs."""
    job = jobs.start(nodes=4)
    old = [jobs.started(worker=worker)[0][2] for worker in range(4)]
    jobs.slurm.kill("tpu1")
    wait_for(lambda: slurm_state(jobs, "tpu1"), "tpu1 is down", LONG)
    jobs.slurm.start_node(1)
    new = [jobs.started(2, worker, timeout=90)[1][2] for worker in range(4)]
    assert not [pid for pid in old if pid not in new and Path(f"/proc/{pid}").exists()]
    jobs.finish()
    jobs.until(job, "succeeded")


def test_killed_supervisor(jobs: Jobs) -> None:
    """After SIGKILL, while it submits and while the program runs, there is one Slurm job, and one attempt."""
    job = jobs.start()
    wait_for(jobs.slurm.jobs, "the Slurm job")
    os.kill(jobs.supervisor(), signal.SIGKILL)
    jobs.cli("list")
    jobs.started()
    os.kill(jobs.supervisor(), signal.SIGKILL)
    jobs.until(job, "running")
    assert len(jobs.slurm.jobs()) == 1
    jobs.finish()
    jobs.until(job, "succeeded")
    assert len(jobs.started()) == 1


def test_controller_down(jobs: Jobs) -> None:
    """While the controller is down, for longer than lost_after, a program runs on, and a job that provisions waits."""
    job = jobs.start()
    jobs.started()
    jobs.slurm.kill("slurmctld")
    down = time.monotonic()
    try:
        waiting = jobs.start("true")
        wait_for(lambda: "Slurm" in str(jobs.show(waiting).get("why")), "why the other one waits")
        wait_for(lambda: time.monotonic() >= down + 60, "60 s without a controller", 90)
        assert jobs.state(job) == "running"
        assert jobs.state(waiting) == "provisioning"
    finally:
        jobs.slurm.start_controller()
    jobs.finish()
    jobs.until(job, "succeeded")
    jobs.until(waiting, "succeeded")
    assert len(jobs.started()) == 1


def test_killed_connections(jobs: Jobs) -> None:
    """SIGKILL of srun and of the relays ends no program, nor a daemon of it, until the job ends."""
    job = jobs.start("setsid --fork sleep 987654 </dev/null >/dev/null 2>&1\n" + COUNTS_ONE)
    jobs.started()
    daemons = wait_for(lambda: pids_of("sleep", "987654"), "the daemon")
    for pid in pids_of("srun", "--overlap") + [pid for pid in pids_of("cat") if is_in(jobs, pid)]:
        with suppress(ProcessLookupError):  # a relay ends with its srun
            os.kill(pid, signal.SIGKILL)
    time.sleep(3)
    assert pids_of("sleep", "987654") == daemons
    jobs.finish()
    assert len(jobs.started()) == 1
    jobs.cli("stop", job)
    jobs.cli("delete", job, "-y", "--force")
    assert not wait_until_none(lambda: pids_of("sleep", "987654"))


def test_stop_and_delete_leave_nothing(jobs: Jobs) -> None:
    """No process of the job is left, no directory on any node, and no Slurm job."""
    job = jobs.start(nodes=4)
    jobs.started(worker=3)
    assert jobs.processes()
    assert len(list(jobs.nodes.iterdir())) == 4
    jobs.cli("stop", job)
    jobs.cli("delete", job, "-y")
    assert not wait_until_none(jobs.slurm.jobs)
    assert not wait_until_none(jobs.processes)
    assert list(jobs.nodes.iterdir()) == []


COUNTS_ONE = 'echo "start $TPUX_ATTEMPT 0 $$" >>$S/starts-$SLURM_PROCID\nuntil [ -e $S/finish ]; do sleep 0.1; done'


def slurm_id(jobs: Jobs) -> str:
    """Return the first Slurm job of tpux."""
    return jobs.slurm.run("squeue", "-h", "-p", "low", "-o", "%i").split()[0]


def slurm_state(jobs: Jobs, node: str) -> bool:
    """Return whether a node is down."""
    return "down" in jobs.slurm.run("sinfo", "-h", "-n", node, "-p", "low", "-o", "%T")


def pids_of(*words: str) -> list[int]:
    """Return the processes whose command begins with the first word, and has the others."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            line = (process / "cmdline").read_text(errors="replace").split("\0")
            if Path(line[0]).name == words[0] and {*words[1:]} <= {*line}:
                found.append(int(process.name))
    return sorted(found)


def wait_until_none(found: object, timeout: float = 20) -> object:
    """Return what a function returns, once that is empty or the time is over."""
    assert callable(found)
    deadline = time.monotonic() + timeout
    while (left := found()) and time.monotonic() < deadline:
        time.sleep(0.2)
    return left


def is_in(jobs: Jobs, pid: int) -> bool:
    """Return whether a process works in a directory of a node."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cwd").readlink().is_relative_to(jobs.nodes)
    return False
