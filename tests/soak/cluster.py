"""The jobs of the soak test, the emulator, and the supervisor that drives them."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.soak.installation import Installation
from tpux_emulator.emulator import Emulator

MINUTE, HOUR = 60.0, 3600.0
ZONES = ("us-east5-b", "us-east1-d")
CONFIG = """
job: {{name: {name}, rule: resume, max_restarts: {{preempted: 1000, maintenance: 1000, host-lost: 100, infra: 100}}}}
tpu:
  allocation_mode: {mode}
  accelerator: [v6e-8, v6e-4]
  zone: [us-east5-b, us-east1-d]
  version: v2-alpha-tpuv6e
  pricing: spot
  zone_patience: 5m
  keep_on_failure: 10m
  keep_on_stop: 10m
ssh: {{port: {port}, connect_timeout: 60}}
watch: {{poll_every: 60s, lost_after: 2h}}
command: {{cmd: {cmd}, grace_period: 10s}}
"""


@dataclass(frozen=True)
class Plan:
    """One job: when it is created, how long its program runs in all, and how the job ends.

    Attributes:
        name: the job's name.
        mode: its allocator.
        at: emulated seconds after the begin.
        seconds: emulated seconds from then until its program ends, or the user ends the job.
        end: `succeeded`, `failed`, `stopped` by the user, or `deleted` by the user.
    """

    name: str
    mode: str
    at: float
    seconds: float
    end: str


def make_plans(count: int, hours: float, rng: random.Random) -> list[Plan]:
    """Return the jobs: two thirds last almost to the end, the others come and go in the first half."""
    plans = []
    for number in range(count):
        mode = rng.choice(["tpu-vm", "queued-resources"])
        end = rng.choice(["succeeded", "succeeded", "failed", "stopped", "deleted"])
        if number % 3:
            at, seconds = rng.uniform(0, 0.1 * hours) * HOUR, 0.75 * hours * HOUR
        else:
            at, seconds = rng.uniform(0, 0.5 * hours) * HOUR, rng.uniform(0.02, 0.2) * hours * HOUR
        plans.append(Plan(f"soak-{number:02}", mode, at, seconds, end))
    return sorted(plans, key=lambda plan: plan.at)


class Cluster:
    """The emulator, a store, and the command.

    Args:
        directory: of all files.
        rate: emulated seconds per real second.
    """

    def __init__(self, directory: Path, rate: float) -> None:
        self.rate = rate
        self.directory = directory
        self.installation = Installation(directory / "site")
        self.installation.install("1.0.0")
        delays = {"node.CREATING": 90, "node.DELETING": 60, "queued-resource.WAITING_FOR_RESOURCES": 30}
        self.cloud = Emulator(directory / "emulator", clock_rate=rate, delays=delays)
        self.cloud.start()
        self.cloud.change(delays=delays)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("TPUX_", "CLOUDSDK_"))}
        self.env: Mapping[str, str] = {
            **kept,
            "TPUX_HOME": str(directory / "home"),
            "TPUX_CLOCK_RATE": str(rate),
            "TPUX_GCP_ENDPOINT": self.cloud.url,
            "CLOUDSDK_CONFIG": str(directory / "gcloud"),
            "PYTHONPATH": str(self.installation.site),
            "NO_COLOR": "1",
        }

    def tpux(self, *words: str, check: bool = True) -> str:
        """Run a command and return what it printed."""
        done = subprocess.run(
            [sys.executable, "-m", "tpux.cli.main", *words],
            env=self.env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=900, check=False,
        )  # fmt: skip
        if check and done.returncode:
            raise RuntimeError(f"tpux {' '.join(words)}: exit {done.returncode}\n{done.stdout}\n{done.stderr}")
        return done.stdout

    def create(self, plan: Plan) -> str:
        """Create a job. Its program runs until a fixed time, in whichever attempt."""
        code = 3 if plan.end == "failed" else 0
        lasts = plan.seconds / self.rate if plan.end in {"succeeded", "failed"} else 10**6
        loop = f"while [ $(date +%s) -lt {time.time() + lasts:.0f} ]; do echo $((n += 1)); sleep 0.5; done"
        command = f"{loop}; exit {code}"
        text = CONFIG.format(name=plan.name, mode=plan.mode, port=self.cloud.ssh_port, cmd=json.dumps(command))
        config = self.directory / f"{plan.name}.yaml"
        config.write_text(text)
        return str(json.loads(self.tpux("create", str(config), "--json"))["id"])

    def supervisor(self) -> dict[str, object]:
        """Return the status of the supervisor."""
        status = json.loads(self.tpux("supervisor", "status", "--json", check=False) or "{}")
        assert isinstance(status, dict)
        return status

    def kill_supervisor(self) -> None:
        """Kill the supervisor with SIGKILL, and start a new one."""
        pid = self.supervisor().get("pid")
        if isinstance(pid, int):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            time.sleep(0.2)
        self.tpux("supervisor", "start")

    def states(self) -> dict[str, str]:
        """Return the state of each job by its name."""
        return {str(job["name"]): str(job["state"]) for job in json.loads(self.tpux("list", "--json", "--all"))}

    def held(self) -> list[str]:
        """Return what exists on the emulator."""
        status = self.cloud.status()
        resources = [*list(status["nodes"]), *list(status["queuedResources"])]  # type: ignore[call-overload]
        return [str(each["name"]) for each in resources]

    def close(self) -> None:
        """Stop everything."""
        self.tpux("supervisor", "stop", check=False)
        self.cloud.stop()
