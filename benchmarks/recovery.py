"""From a preemption until the command runs again, and the CPU of watching 64 workers, on emulated TPU VMs.

The emulator creates and deletes nodes without a delay, so what is left is tpux' own time, with that of its polls.
Beside it are the poll intervals of other tools, as their documentation or code states them: half of one passes on
average until they notice a preemption.
"""

from __future__ import annotations

import time
from statistics import median

from benchmarks.emulated import ZONE, unavailable
from benchmarks.many_jobs import cpu_share
from benchmarks.measure import Row, at_most, until
from benchmarks.sandbox import Sandbox, running, temporary_sandbox
from tpux.model.events import AttemptRunning
from tpux.store.record import Record
from tpux_emulator.cloud.settings import DEFAULT_DELAYS
from tpux_emulator.emulator import Emulator

ROUNDS = 5
PEERS = "polls of other tools: SkyPilot every 20 s, axlearn 30 s, levanter 60 s, tpu_manager 10 min"
JOB = """
job: {{name: {name}, rule: pre, env_type: {environment}}}
tpu:
  allocation_mode: tpu-vm
  accelerator: {accelerator}
  pricing: spot
  zone: {zone}
  project: emulated
  endpoint: {url}
ssh: {{port: {port}}}
command: {{cmd: "echo here; exec sleep 3600", grace_period: 1s}}
"""


def rows() -> list[Row]:
    """Measure the recovery of 4 workers, and the supervisor's CPU while 64 workers run and write nothing."""
    if reason := unavailable():
        return [Row("recovery on emulated TPU VMs", f"not measured: {reason}")]
    with temporary_sandbox() as sandbox, _cloud(sandbox) as cloud:
        sandbox.env |= {"PYTHONPYCACHEPREFIX": str(sandbox.directory / "pycache"), "PYTHONDONTWRITEBYTECODE": ""}
        sandbox.env |= cloud.environment(zone=ZONE)
        try:
            return [*_recovery(sandbox, cloud), _watching(sandbox, cloud)]
        finally:
            sandbox.tpux("supervisor", "stop")  # before the emulator stops: it would request new nodes


def _cloud(sandbox: Sandbox) -> Emulator:
    return Emulator(sandbox.directory / "emulator", clock_rate=1, delays=dict.fromkeys(DEFAULT_DELAYS, 0.0))


def _begin(
    sandbox: Sandbox, cloud: Emulator, name: str, accelerator: str, environment: str = "null"
) -> tuple[Record, int]:
    text = JOB.format(
        name=name, accelerator=accelerator, zone=ZONE, url=cloud.url, port=cloud.ssh_port, environment=environment
    )
    sandbox.tpux("supervisor", "stop")
    (record,) = sandbox.create(sandbox.config(text), 1)
    pid = sandbox.start()
    until(lambda: running(record) and record.refresh().run.running, within=120, why="a running job")
    return record, pid


def _recovery(sandbox: Sandbox, cloud: Emulator) -> list[Row]:
    without, with_venv = (_recovery_times(sandbox, cloud, environment) for environment in ("null", "venv"))
    note = f"{ROUNDS} preemptions, slowest {max(without):.1f} s; {PEERS}"
    name, share = "preemption until the command runs again on 4 new workers", median(with_venv) / median(without)
    note_venv = f"median {median(with_venv):.2f} s, without {median(without):.2f} s; {ROUNDS} preemptions each"
    return [
        at_most(name, median(without), 4, unit=" s", note=note),
        at_most("the same with an empty venv, which each worker creates", share, 1.5, unit=" times", note=note_venv),
    ]


def _recovery_times(sandbox: Sandbox, cloud: Emulator, environment: str) -> list[float]:
    """Return the seconds from each preemption until the command runs again, in an environment or in none."""
    record, _ = _begin(sandbox, cloud, "recovery", "v4-32", environment)
    taken = []
    for attempt in range(2, ROUNDS + 2):
        allocation = record.refresh().machines
        assert allocation is not None
        time.sleep(3.0)  # so that each worker waits for the notice
        began = time.time()
        cloud.preempt(allocation.name, notice=0)
        until(lambda n=attempt: _running_at(record, n) > 0, within=120, why=f"attempt {attempt}")  # type: ignore[misc]
        taken.append(_running_at(record, attempt) - began)
    sandbox.tpux("delete", "--name", "recovery", "--yes")
    return taken


def _running_at(record: Record, attempt: int) -> float:
    started = [event for event, _ in record.events() if isinstance(event, AttemptRunning) and event.attempt == attempt]
    return started[0].at if started else 0.0


def _watching(sandbox: Sandbox, cloud: Emulator) -> Row:
    _, pid = _begin(sandbox, cloud, "watching", "v4-512")
    time.sleep(5.0)
    share = 100 * cpu_share(pid)
    sandbox.tpux("delete", "--name", "watching", "--yes")
    return at_most("CPU of the supervisor while 64 workers run and write nothing", share, 3, unit=" %")
