"""The supervisor is killed with SIGKILL at random times: every attempt, start and output byte occurs exactly once."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

import pytest

pytestmark = [pytest.mark.system, pytest.mark.timeout(400)]
WORKERS = 4
LINES = 25
SLOW = """
    from pathlib import Path
    import tpux_local
    from tpux import MachineStatus, Waiting, hookimpl, sh
    from tpux_local import config_section, connect, release, tpu_section

    STARTS = Path("DIRECTORY")

    @hookimpl
    def inspect(request):
        # preempt_after counts from the first inspect; on a busy machine some programs start later than that.
        if all((STARTS / f"command-{worker}-1").exists() for worker in range(4)):
            return tpux_local.inspect(request)
        return MachineStatus("ready", poll_after=0.2)

    @hookimpl
    def provision(request):
        if (waited := (request.saved_state or {}).get("waited", 0)) < 4:
            return Waiting("still waiting", 0.1, saved_state={"waited": waited + 1})
        return tpux_local.provision(request)

    @hookimpl
    def check():
        yield sh("test -e ready")

    @hookimpl
    def setup(worker):
        yield sh("echo run >> {file}-$(basename $(dirname $HOME)); sleep 0.4", file=STARTS / f"setup-{worker.index}")
        yield sh("touch ready")
"""
JOB = f"""
tpu: {{allocation_mode: slow, accelerator: v4-32, pricing: spot}}
slow: {{preempt_after: 1.2s}}
setup: {{modules: [slow]}}
command:
  grace_period: 5s
  cmd: |
    echo started >> DIRECTORY/command-$TPUX_WORKER-$TPUX_ATTEMPT
    for i in $(seq {LINES}); do echo $TPUX_WORKER $TPUX_ATTEMPT $i; sleep 0.06; done
    [ $TPUX_ATTEMPT = 2 ] || sleep 1000
"""


class Chaos:
    """Starts supervisors and kills them after a random delay."""

    def __init__(self, tpux, seed: int) -> None:
        self.tpux = tpux
        self.random = random.Random(seed)
        self.directory = tpux.work / "starts"
        self.directory.mkdir()
        tpux.plugin("tpux-slow", SLOW.replace("DIRECTORY", str(self.directory)), entries="slow = tpux_slow")
        self.states: Counter[str] = Counter()

    def create(self, text: str) -> str:
        job = self.tpux.create(text.replace("DIRECTORY", str(self.directory)))
        self.tpux.kill_supervisor()
        return job

    def kill_repeatedly(self, job: str, until: Callable[[], bool]) -> None:
        """Start supervisors, sometimes two at once, and kill them, until the condition holds; then let one live."""
        deadline = time.monotonic() + 300
        while not until():
            assert time.monotonic() < deadline, self.log()
            started = [self.start() for _ in range(self.random.choice([1, 1, 2]))]
            self.tpux.until(lambda: any(f"started, process {one.pid}\n" in self.log() for one in started))  # noqa: B023
            time.sleep(self.random.uniform(0, 0.7))
            for process in started:
                process.kill()
                process.wait()
            self.states[self.state(job)] += 1
        self.tpux("supervisor", "start")

    def start(self) -> subprocess.Popen[bytes]:
        with (self.directory / "log").open("ab") as file:
            command = [sys.executable, "-m", "tpux.supervisor"]
            return subprocess.Popen(command, env=self.tpux.env, cwd="/", stderr=file, stdin=subprocess.DEVNULL)

    def log(self) -> str:
        return (self.directory / "log").read_text()

    def state(self, job: str) -> str:
        try:
            return str(json.loads((self.tpux.directory(job) / "state.json").read_text())["state"]["state"])
        except FileNotFoundError:
            return "pending"

    def starts(self, what: str) -> dict[str, int]:
        return {path.name: len(path.read_text().splitlines()) for path in self.directory.glob(f"{what}-*")}


def lines(worker: int, attempt: int) -> bytes:
    return b"".join(b"%d %d %d\n" % (worker, attempt, i) for i in range(1, LINES + 1))


@pytest.mark.parametrize("seed", [1, 2])
def test_a_preempted_job_on_four_workers(tpux, seed):
    chaos = Chaos(tpux, seed)
    job = chaos.create(JOB)
    chaos.kill_repeatedly(job, lambda: chaos.state(job) in {"succeeded", "failed"} or sum(chaos.states.values()) >= 10)
    tpux("wait", job)
    shown = tpux.show(job)
    assert (shown["attempt"], shown["stage"], shown["preemptions"]) == (2, 1, 1), chaos.states
    assert shown["restarts"] == {"preempted": 1}
    assert [event["attempt"] for event in tpux.events(job, "attempt-started")] == [1, 2]
    assert [event["attempt"] for event in tpux.events(job, "attempt-ended")] == [1, 2]
    assert Counter(
        event["worker"] for event in tpux.events(job, "worker-exited") if event["attempt"] == 2
    ) == dict.fromkeys(range(WORKERS), 1)
    assert chaos.starts("command") == {f"command-{w}-{a}": 1 for w in range(WORKERS) for a in (1, 2)}
    assert chaos.starts("setup") == {f"setup-{w}-{generation}": 1 for w in range(WORKERS) for generation in (1, 2)}
    for worker in range(WORKERS):
        assert lines(worker, 1).startswith(tpux.output(job, worker, 1))
        assert tpux.output(job, worker, 2) == lines(worker, 2)
        setup = (tpux.directory(job) / f"logs/slow_worker_{worker}.log").read_text()
        assert setup.count("$ touch ready") == 2, "once per round"


IGNORES_SIGTERM = """
tpu: {allocation_mode: slow, accelerator: v4-16}
command:
  grace_period: 1s
  cmd: "trap '' TERM; setsid sleep 1000 & echo $$ $!; while :; do sleep 0.1; done"
"""


def test_stopping_a_job_that_ignores_sigterm(tpux):
    chaos = Chaos(tpux, 4)
    job = chaos.create(IGNORES_SIGTERM)

    def up() -> bool:
        return all(tpux.output_so_far(job, worker).endswith(b"\n") for worker in (0, 1))

    chaos.kill_repeatedly(job, lambda: up() or sum(chaos.states.values()) >= 10)
    tpux.until(up)
    pids = [int(pid) for worker in (0, 1) for pid in tpux.output_so_far(job, worker).split()]
    assert all(map(tpux.alive, pids))
    tpux.until(tpux.supervisor)
    supervisor = tpux.supervisor()
    tpux("stop", job, "--no-wait")
    with suppress(ProcessLookupError):  # it may already have stopped the job and exited
        os.kill(supervisor, signal.SIGKILL)
    tpux.until(lambda: not tpux.alive(supervisor))
    limit = sum(chaos.states.values()) + 15  # on a busy machine it may be killed before "stopping"
    chaos.kill_repeatedly(
        job, lambda: chaos.state(job) == "stopped" or chaos.states["stopping"] >= 4 or chaos.states.total() >= limit
    )
    tpux("wait", job, code=103)
    assert not any(map(tpux.alive, pids))
    assert len(tpux.events(job, "attempt-started")) == 1
    assert [event["to"] for event in tpux.events(job, "state-changed")][-2:] == ["stopping", "stopped"]


def test_a_job_in_its_backoff(tpux):
    chaos = Chaos(tpux, 6)
    rule = "job: {rule: resume, max_restarts: {program: 1}}\n"
    job = chaos.create(f"{rule}command:\n  cmd: echo started >> DIRECTORY/command-$TPUX_ATTEMPT; exit 3\n")
    tpux("list")
    tpux.until(lambda: chaos.state(job) == "recovering")
    tpux.kill_supervisor()
    # Extend the backoff beyond the duration of the test, even on a busy machine.
    path = tpux.directory(job) / "events.jsonl"
    events = [json.loads(line) for line in path.read_text().splitlines()]
    longer = [{**event, "until": event["until"] + 600} if event.get("until") else event for event in events]
    path.write_text("".join(f"{json.dumps(event)}\n" for event in longer))
    (path.parent / "state.json").unlink()
    chaos.kill_repeatedly(job, lambda: sum(chaos.states.values()) >= 2)
    assert tpux.show(job)["restarts"] == {"program": 1}
    assert tpux.show(job)["state"] == "recovering"
    tpux("resume", job)
    tpux("wait", job, code=100)
    assert chaos.starts("command") == {"command-1": 1, "command-2": 1}
