"""Jobs on the cluster of the tests."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TypeVar, cast

from tpux import JsonValue
from tpux_slurm.contract_fixture import Cluster
from tpux_testing.commands import CommandLine

T = TypeVar("T")
LONG = 60.0
# A program that counts in a file of the shared directory, saves at SIGTERM, and ends once `finish` exists there.
COUNTS = """
trap 'echo term >>$S/terms-$SLURM_PROCID; date +%s.%N >$S/termed; echo $n >$S/saved; exit 0' TERM
n=$(cat $S/saved 2>/dev/null || echo 0)
echo "start $TPUX_ATTEMPT $n $$" >>$S/starts-$SLURM_PROCID
while [ ! -e $S/finish ]; do n=$((n + 1)); sleep 0.1; done
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

    def __init__(self, slurm: Cluster, cli: CommandLine) -> None:
        self.slurm, self.cli = slurm, cli
        self.shared = cli.work / "shared"
        self.shared.mkdir()
        self.nodes = cli.work / "nodes"

    def start(self, cmd: str = COUNTS, nodes: int = 2, **tpu: JsonValue) -> str:
        """Create a job that may use nodes of the cluster; return its id."""
        given: dict[str, JsonValue] = {
            "allocation_mode": "slurm",
            "nodes": nodes,
            "storage": str(self.shared),
            "node_directory": str(self.nodes),
            **tpu,
        }
        path = self.cli.work / "job.yaml"
        command = {"cmd": f"S={self.shared}\n{cmd}", "grace_period": 5}
        watch = {"lost_after": "20s", "verdict_grace": "3s", "poll_every": "0.3s"}
        path.write_text(json.dumps({"tpu": given, "command": command, "watch": watch, "setup": {"modules": []}}))
        return self.cli("create", path.name).stdout.strip()

    def show(self, job: str) -> dict[str, JsonValue]:
        """Return what `tpux show --json` prints."""
        return cast("dict[str, JsonValue]", self.cli.json("show", job))

    def state(self, job: str) -> str:
        """Return the state."""
        return str(self.show(job)["state"])

    def until(self, job: str, state: str, timeout: float = LONG) -> dict[str, JsonValue]:
        """Wait until the job has a state."""
        deadline = time.monotonic() + timeout
        while (shown := self.show(job))["state"] != state:
            assert time.monotonic() < deadline, f"the job is {shown['state']}, not {state}: {json.dumps(shown)[:2000]}"
            time.sleep(0.2)
        return shown

    def started(self, count: int = 1, worker: int = 0, timeout: float = LONG) -> list[list[str]]:
        """Wait for so many starts of the program on a worker: attempt, first number and pid of each."""
        file = self.shared / f"starts-{worker}"

        def lines() -> list[list[str]]:
            found = file.read_text().splitlines() if file.exists() else []
            return [line.split()[1:] for line in found] if len(found) >= count else []

        return wait_for(lines, f"start {count} of worker {worker}", timeout)

    def finish(self) -> None:
        """Let the programs end."""
        (self.shared / "finish").touch()

    def terms(self, worker: int = 0) -> int:
        """Return how many SIGTERM the program has got."""
        file = self.shared / f"terms-{worker}"
        return len(file.read_text().splitlines()) if file.exists() else 0

    def events(self, job: str) -> list[dict[str, JsonValue]]:
        """Return the events of a job."""
        files = list(Path(self.cli.env["TPUX_HOME"]).glob(f"jobs/*/*{job}/events.jsonl"))
        return [json.loads(line) for line in files[0].read_text().splitlines()]

    def processes(self) -> list[int]:
        """Return the processes that run in directories of nodes."""
        return sorted(_with_text(f"TPUX_MACHINE_DIR={self.nodes}/"))

    def supervisor(self) -> int:
        """Return the pid of the supervisor."""
        found = list(_with_text(f"TPUX_HOME={self.cli.env['TPUX_HOME']}", "tpux", "supervisor"))
        return found[0]


def _with_text(variable: str, *words: str) -> Iterator[int]:
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            line = (process / "cmdline").read_text(errors="replace")
            is_it = variable in (process / "environ").read_text(errors="replace")
            if is_it and all(word in line for word in words) and int(process.name) != os.getpid():
                yield int(process.name)
