"""Run the soak test and print its figures: `make soak`, or `python -m tests.soak --jobs 12 --rate 48`."""

from __future__ import annotations

import argparse
import random
import re
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean

from tests import figures
from tests.soak.cluster import HOUR, MINUTE, ZONES, Cluster, Plan, make_plans
from tpux import TpuxError

KILL_EVERY = 10 * MINUTE
FAULT_EVERY = 4 * MINUTE
SAMPLE_EVERY = 3 * MINUTE
END_TIMEOUT = 3 * HOUR
"""Emulated seconds after the last hour in which all jobs must end and release their machines."""
GROWTH = {"memory (MB)": 10.0, "threads": 8.0, "descriptors": 16.0}
"""How much more the last third of the quiet hours may have than the middle third."""


@dataclass
class Soak:
    """One run.

    Attributes:
        cluster: the emulator and the supervisor.
        plans: the jobs that are still to be created.
        hours: emulated hours.
        rng: the source of all random choices.
    """

    cluster: Cluster
    plans: list[Plan]
    hours: float
    rng: random.Random
    created: dict[str, Plan] = field(default_factory=dict)
    ends: dict[str, float] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    samples: list[dict[str, float]] = field(default_factory=list)
    began: float = field(default_factory=time.time)

    @property
    def now(self) -> float:
        """Emulated seconds since the begin."""
        return (time.time() - self.began) * self.cluster.rate

    def run(self) -> list[str]:
        """Run all hours, and wait for the end of all jobs.

        Returns:
            What is wrong in the end; empty if nothing is.
        """
        eighth = self.hours * HOUR / 8
        kill_at, fault_at, sample_at, replaced = eighth, 0.0, 4 * eighth, False
        while (now := self.now) < self.hours * HOUR:
            while self.plans and self.plans[0].at <= now:
                self._create(self.plans.pop(0))
            self._end_jobs(now)
            if fault_at <= now < 7.5 * eighth:
                self._fault()
                fault_at = now + FAULT_EVERY
            if kill_at <= now < 4 * eighth:
                self.cluster.kill_supervisor()
                self._count("supervisor killed")
                kill_at = now + KILL_EVERY
            if now >= 4 * eighth and not replaced:
                replaced = True
                self.cluster.installation.install("2.0.0")
            if now >= max(sample_at, 5 * eighth):
                self._sample()
                sample_at = now + SAMPLE_EVERY
            time.sleep(0.1)
        self.cluster.cloud.clear()
        return self._finish()

    def _create(self, plan: Plan) -> None:
        self.created[self.cluster.create(plan)] = plan
        if plan.end in {"stopped", "deleted"}:
            self.ends[plan.name] = self.now + plan.seconds

    def _end_jobs(self, now: float) -> None:
        for name in [name for name, at in self.ends.items() if at <= now]:
            del self.ends[name]
            plan = next(plan for plan in self.created.values() if plan.name == name)
            words = ("stop", name, "--no-wait") if plan.end == "stopped" else ("delete", name, "--yes")
            self.cluster.tpux(*words, check=False)  # `delete` gives up waiting after a while, and the release goes on
            self._count(f"{plan.end} by the user")

    def _fault(self) -> None:
        cloud, rng, zone = self.cluster.cloud, self.rng, self.rng.choice(ZONES)
        kind = rng.choice(["preempted", "preempted", "preempted", "stockout", "quota", "late", "lost", "error", "slow"])
        try:
            if kind == "preempted":
                nodes = [str(node["name"]) for node in cloud.status()["nodes"] if node["state"] == "READY"]  # type: ignore[index, union-attr]
                if not nodes:
                    return
                cloud.preempt(rng.choice(sorted(nodes)).rpartition("/")[2], notice=rng.choice([0, 30]))
            elif kind == "stockout":
                cloud.stockout(zone, lasting=10 * MINUTE, form=rng.choice(["zone", "resources", "pool"]))
            elif kind == "quota":
                cloud.quota(zone, limit=16, lasting=10 * MINUTE, form=rng.choice(["zone", "region", "exhausted"]))
            elif kind == "late":
                cloud.late(2 * MINUTE, count=1, lasting=10 * MINUTE)
            elif kind == "lost":
                cloud.lose(rng.choice(["*.create", "*.delete"]), count=1, lasting=10 * MINUTE)
            elif kind == "error":
                cloud.error(rng.choice([500, 503, 429]), rng.choice(["*", "*.get", "*.create"]), count=5, lasting=HOUR)
            else:
                cloud.slow(MINUTE, "*.get", count=5, lasting=10 * MINUTE)
        except TpuxError as error:  # the node has just been deleted
            print(f"  no {kind}: {error.message}", flush=True)
        else:
            self._count(kind)

    def _count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    def _sample(self) -> None:
        pid = self.cluster.supervisor().get("pid")
        if not isinstance(pid, int):
            return
        try:
            status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
            descriptors = float(len(list(Path(f"/proc/{pid}/fd").iterdir())))
        except FileNotFoundError:
            return
        memory = int(status["VmRSS"].split()[0]) / 1024
        sample = {"memory (MB)": memory, "threads": float(status["Threads"]), "descriptors": descriptors}
        self.samples.append({"hour": self.now / HOUR, "pid": float(pid), **sample})

    def _finish(self) -> list[str]:
        problems, deadline = [], self.now + END_TIMEOUT
        for name in list(self.ends):
            self.ends[name] = 0.0
        self._end_jobs(self.now)
        left: dict[str, str] = {}
        while self.now < deadline:
            states = self.cluster.states()
            left = {
                plan.name: states.get(plan.name, "deleted")
                for plan in self.created.values()
                if states.get(plan.name, "deleted") != plan.end
            }
            if not left and not self.cluster.held():
                break
            time.sleep(1)
        problems += [f"{name} is {state}" for name, state in left.items()]
        problems += [f"left on the emulator: {name}" for name in self.cluster.held()]
        installation = self.cluster.supervisor().get("installation")
        version = installation.get("version") if isinstance(installation, dict) else None
        if version not in {self.cluster.installation.version, None}:
            problems.append(f"the supervisor runs version {version}, not {self.cluster.installation.version}")
        return problems + self._growth()

    def _growth(self) -> list[str]:
        if len({sample["pid"] for sample in self.samples}) != 1:
            return [f"{len({sample['pid'] for sample in self.samples})} supervisors in the quiet hours"]
        third = max(1, len(self.samples) // 3)
        problems = []
        for name, allowed in GROWTH.items():
            parts = [self.samples[:third], self.samples[third:-third] or self.samples, self.samples[-third:]]
            first, middle, last = (mean(sample[name] for sample in part) for part in parts)
            print(f"{name} in each third of the quiet hours: {first:.1f}, {middle:.1f}, {last:.1f}")
            if last - middle > allowed:  # the first third is that of a process that has just been replaced
                problems.append(f"{name} grew from {middle:.1f} to {last:.1f}")
        return problems


def main() -> int:
    """Run the soak test; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--jobs", type=int, default=50)
    parser.add_argument("--hours", type=float, default=8.0, help="hours of the emulator's clock")
    parser.add_argument("--rate", type=float, default=8.0, help="emulated seconds per real second")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    with tempfile.TemporaryDirectory(prefix="tpux-soak-", ignore_cleanup_errors=True) as directory:
        cluster = Cluster(Path(directory), options.rate)
        soak = Soak(cluster, make_plans(options.jobs, options.hours, rng), options.hours, rng)
        try:
            problems = soak.run()
        finally:
            logs = [path.read_text(errors="replace") for path in Path(directory).glob("home/supervisor/*/log")]
            cluster.close()
    print(f"seed {options.seed}: {options.jobs} jobs, {options.hours:g} h at {options.rate:g} times the speed")
    print(", ".join(f"{count} x {what}" for what, count in sorted(soak.counts.items())))
    errors = [error for log in logs for error in re.findall(r"^.*\nTraceback (?s:.*?)\n(?=\d{4}-)", log, re.MULTILINE)]
    problems += [f"a traceback in the supervisor's log:\n{error}" for error in dict.fromkeys(errors)]
    found = {"jobs": options.jobs, "hours": f"{options.hours:g}", "seed": options.seed}
    figures.record("soak", {**found, "faults": sum(soak.counts.values()), "problems": len(problems)})
    print("\n".join(problems) or "every job has the right state, and the emulator holds nothing")
    if problems:
        print("\n".join(log[-4000:] for log in logs), file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
