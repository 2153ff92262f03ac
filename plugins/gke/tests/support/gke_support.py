"""Jobs on the cluster of the tests."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar, cast

from tpux import JsonValue
from tpux_emulator.emulator import Emulator
from tpux_gke.client import JOBSETS, Client
from tpux_gke.cluster import find
from tpux_gke.objects import Object
from tpux_gke.section import GkeTpuSection
from tpux_testing.commands import CommandLine

T = TypeVar("T")
LONG = 90.0
QUICK: dict[str, JsonValue] = {
    "schedule": 0.02, "start": 0.02, "admission": 0.05, "scale_up": 0.1, "retry": 0.3, "node_pools": None,
    "images": ["good*"], "pull_error": "rpc error: code = NotFound desc = failed to pull and unpack image: not found",
    "quota": 1024, "denied": [], "queue_stopped": False, "jobset": True,
    "exec_protocols": ["v5.channel.k8s.io", "v4.channel.k8s.io"],
}  # fmt: skip
# A program that counts, saves at SIGTERM, and ends once `finish` exists.
COUNTS = """
me=$TPUX_WORKER
trap 'date +%s.%N >$S/termed-$me; echo $n >$S/saved-$me; exit 0' TERM
n=$(cat $S/saved-$me 2>/dev/null || echo 0)
echo "start $TPUX_ATTEMPT $n" >>$S/starts-$me
while [ ! -e $S/finish ]; do n=$((n + 1)); sleep 0.1; done
echo "finished $me"
"""


def wait_for(holds: Callable[[], T], what: str, timeout: float = LONG) -> T:
    """Return what a function returns once that is true."""
    deadline = time.monotonic() + timeout
    while not (found := holds()):
        assert time.monotonic() < deadline, f"not within {timeout:.0f} s: {what}"
        time.sleep(0.1)
    return found


class Jobs:
    """The command line of tpux, and what it shows of a job."""

    def __init__(self, cluster: Emulator, cli: CommandLine) -> None:
        self.cluster, self.cli = cluster, cli
        self.shared = cli.work / "shared"
        self.shared.mkdir()
        self._configs = 0

    @property
    def api(self) -> Client:
        """A client of the cluster."""
        given = {"accelerator": "v6e-8", "image": "x", "kubeconfig": str(self.cluster.home.kubeconfig)}
        return Client(find(GkeTpuSection.model_validate(given)))

    def config(
        self, cmd: str = COUNTS, rule: str = "", provision_timeout: str = "", lost_after: str = "60s", **tpu: JsonValue
    ) -> str:
        """Write a config of a job, and return its name."""
        given: dict[str, JsonValue] = {"allocation_mode": "gke", "accelerator": "v6e-8", "image": "good", **tpu}
        given |= {"provision_timeout": provision_timeout} if provision_timeout else {}
        self._configs += 1
        path = self.cli.work / f"job{self._configs}.yaml"
        config: dict[str, JsonValue] = {
            "tpu": given,
            "command": {"cmd": f"S={self.shared}\n{cmd}", "grace_period": 10},
            "watch": {"lost_after": lost_after, "verdict_grace": "8s", "poll_every": "0.3s"},
            "setup": {"modules": []},
            "job": {"rule": rule} if rule else {},
        }
        path.write_text(json.dumps(config))
        return path.name

    def start(
        self, cmd: str = COUNTS, rule: str = "", provision_timeout: str = "", lost_after: str = "60s", **tpu: JsonValue
    ) -> str:
        """Create a job; return its id."""
        return self.cli("create", self.config(cmd, rule, provision_timeout, lost_after, **tpu)).stdout.strip()

    def show(self, job: str) -> dict[str, JsonValue]:
        """Return what `tpux show --json` prints."""
        return cast("dict[str, JsonValue]", self.cli.json("show", job))

    def until(self, job: str, state: str, timeout: float = LONG) -> dict[str, JsonValue]:
        """Wait until the job has a state."""
        deadline = time.monotonic() + timeout
        while (shown := self.show(job))["state"] != state:
            assert time.monotonic() < deadline, f"the job is {shown['state']}, not {state}: {json.dumps(shown)[:2500]}"
            time.sleep(0.2)
        return shown

    def until_said(self, job: str, words: str, timeout: float = LONG) -> None:
        """Wait until what `tpux show --json` prints has some words."""
        deadline = time.monotonic() + timeout
        while words not in (shown := json.dumps(self.show(job))):
            assert time.monotonic() < deadline, f"{words!r} is not shown: {shown[:2500]}"
            time.sleep(0.2)

    def starts(self, count: int = 1, worker: int = 0, timeout: float = LONG) -> list[list[str]]:
        """Wait for so many starts of the program on a worker: attempt and first number of each."""
        file = self.shared / f"starts-{worker}"

        def lines() -> list[list[str]]:
            found = file.read_text().splitlines() if file.exists() else []
            return [line.split()[1:] for line in found] if len(found) >= count else []

        return wait_for(lines, f"start {count} of worker {worker}", timeout)

    def finish(self) -> None:
        """Let the programs end."""
        (self.shared / "finish").touch()

    def events(self, job: str) -> list[dict[str, JsonValue]]:
        """Return all that has happened to a job; unlike what it shows at the moment, none of it is missed."""
        files = list(Path(self.cli.env["TPUX_HOME"]).glob(f"jobs/*/*{job}/events.jsonl"))
        return [json.loads(line) for line in files[0].read_text().splitlines()]

    def ended(self, job: str) -> list[dict[str, JsonValue]]:
        """Return the failures with which attempts have ended."""
        ends = [event.get("failure") for event in self.events(job) if event["type"] == "attempt-ended"]
        return [cast("dict[str, JsonValue]", failure) for failure in ends if failure]

    def jobsets(self) -> list[Object]:
        """Return the JobSets of the namespace."""
        return self.api.items(self.api.namespaced(JOBSETS, "jobsets"))

    def failed_pulls(self) -> int:
        """Return how often a node of the namespace has failed to pull an image."""
        found = self.api.items(self.api.namespaced("api/v1", "events"))
        return sum(int(str(one["count"])) for one in found if "Failed to pull" in str(one["message"]))

    def pod(self, slice_number: int = 0, host: int = 0) -> str:
        """Return the beginning of a pod's name of the only JobSet."""
        (name,) = self.names()
        return f"{name}-slice-{slice_number}-{host}-"

    def names(self) -> list[str]:
        """Return the names of the JobSets."""
        return [str(cast("dict[str, JsonValue]", one["metadata"])["name"]) for one in self.jobsets()]

    def supervisor(self) -> int:
        """Return the pid of the supervisor."""
        wanted = f"TPUX_HOME={self.cli.env['TPUX_HOME']}"
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                line = (process / "cmdline").read_text(errors="replace")
                own = wanted in (process / "environ").read_text(errors="replace")
                if own and "supervisor" in line and int(process.name) != os.getpid():
                    return int(process.name)
        return 0
