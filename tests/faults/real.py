"""A supervisor that is killed, stopped or disturbed at each point of a job's life, with real processes.

`python -m tests.faults.real --shard 1/4 --minutes 30` goes through its share of the lives, and when it is called again
through those that are left. What was done is below `.cache/faults`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from tests import figures, json_lines
from tests.conftest import Tpux, _processes_below

ROOT = Path(__file__).parents[2]
SITE = Path(__file__).parent / "site"
CODE = ("core/src", "plugins/*/src", "tests/faults")
"""What a result is one of: it does not count for another version of these, committed or not."""
WORKERS, LINES = 2, 8
TIMEOUT = 120.0
"""Seconds for one wait of a life."""
STOPPED = 2.0
"""For how many seconds everything is stopped."""
FURTHER = ("kill", "error", "hang", "stop")
EXPECTED: dict[str, dict[str, object]] = {
    "preempted": {
        "state": "succeeded",
        "attempt": 2,
        "stage": 1,
        "restarts": {"preempted": 1},
        "starts": {"1-0": 1, "1-1": 1, "2-0": 1, "2-1": 1},
        "set-ups": 4,
        "allocations": 2,
        "machines": "released",
    },
    "stopped": {
        "state": "succeeded",
        "attempt": 2,
        "stage": 1,
        "restarts": {},
        "starts": {"1-0": 1, "1-1": 1, "2-0": 1, "2-1": 1},
        "set-ups": 2,
        "allocations": 1,
        "machines": "released",
    },
}
"""How each job ends, whatever happened: each attempt has started once on each worker, on machines of its own."""
SETUP = "echo $HOME >>{directory}/setup\n"
CONFIGS = {
    "preempted": """
tpu: {{accelerator: v4-16, pricing: spot}}
local: {{preempt_after: 0.3s}}
script: setup.sh
watch: {{poll_every: 0.2s}}
command:
  grace_period: 2s
  cmd: |
    echo start >>{directory}/starts/$TPUX_ATTEMPT-$TPUX_WORKER
    for i in $(seq {lines}); do echo $TPUX_WORKER $TPUX_ATTEMPT $i; sleep 0.03; done
    : >{directory}/starts/written-$TPUX_WORKER
    [ ! -e {directory}/starts/written-0 ] || [ ! -e {directory}/starts/written-1 ] || : >{directory}/starts/all-written
    [ $TPUX_ATTEMPT = 2 ] || sleep 1000
""",
    "stopped": """
tpu: {{accelerator: v4-16}}
script: setup.sh
watch: {{poll_every: 0.2s}}
command:
  grace_period: 10s
  cmd: |
    trap 'echo bye; exit 0' TERM
    echo start >>{directory}/starts/$TPUX_ATTEMPT-$TPUX_WORKER
    for i in $(seq {lines}); do echo $TPUX_WORKER $TPUX_ATTEMPT $i; sleep 0.03; done
    [ $TPUX_ATTEMPT = 2 ] || while :; do sleep 0.05; done
""",
}


@dataclass(frozen=True)
class Fault:
    """Something that happens as a point is passed.

    Attributes:
        point: `before` or `after`, the place, and the state of the job.
        what: kill, stop (of all processes), error or hang.
        count: how often the point was passed before.
    """

    point: str
    what: str
    count: int = 0


@dataclass(frozen=True)
class Case:
    """One life: a job, and what happens in it."""

    job: str
    faults: tuple[Fault, ...] = ()

    @property
    def key(self) -> str:
        """What tells it from the others."""
        return "; ".join([self.job, *(f"{fault.what} {fault.point} #{fault.count}" for fault in self.faults)])


class ViolationError(Exception):
    """Something does not hold."""


class Life:
    """One job in a store of its own.

    Args:
        directory: of all its files.
        case: what happens.
    """

    def __init__(self, directory: Path, case: Case) -> None:
        self.directory, self.case = directory.resolve(), case
        (self.directory / "starts").mkdir(parents=True)
        (self.directory / "work").mkdir()
        (self.directory / "faults.json").write_text(json.dumps([asdict(fault) for fault in case.faults]))
        env = {name: value for name, value in os.environ.items() if not name.startswith("TPUX_")}
        home = str(self.directory / "home")
        env |= {"TPUX_HOME": home, "NO_COLOR": "1", "TPUX_TEST_POINTS": str(self.directory), "PYTHONPATH": str(SITE)}
        self.tpux = Tpux(self.directory / "home", self.directory / "work", env)
        self.job = ""
        self._handled = 0

    def run(self) -> None:
        """Go through the life.

        Raises:
            ViolationError: something does not hold.
        """
        (self.directory / "work/setup.sh").write_text(SETUP.format(directory=self.directory))
        config = CONFIGS[self.case.job].format(directory=self.directory, lines=LINES)
        (self.directory / "work/job.yaml").write_text(config)
        self.job = json.loads(self._command("create", "job.yaml", "--json"))["id"]
        if self.case.job == "stopped":
            self._wait("its output", lambda: all(self._output(1, worker).count(b"\n") >= LINES for worker in (0, 1)))
            self._command("stop", self.job, "--no-wait")
            self._wait("the stop", lambda: self._state() == "stopped")
            self._command("resume", self.job)
        self._wait("its end", lambda: self._state() in {"succeeded", "failed"})
        if self._state() == "failed":
            raise ViolationError(f"it has failed: {self.tpux.show(self.job)['why']}")
        self._wait("the release of its machines", self._is_released)
        if (facts := self._facts()) != EXPECTED[self.case.job]:
            raise ViolationError(f"it ended with {facts} in place of {EXPECTED[self.case.job]}")
        self._check_logs()
        self._check_events()
        deletion = self.tpux.popen("delete", self.job, "--yes")  # it waits, also for a supervisor that is killed
        self._wait("its deletion", lambda: not list(self.tpux.home.glob(f"jobs/*/{self.job}")))
        self._end(deletion, "delete", self.job)
        self._wait("the end of all processes", lambda: not _processes_below(self.tpux.home), start=False)
        if shown := json.loads(self._command("list", "--all", "--json")):
            raise ViolationError(f"the store still has {shown}")

    def close(self) -> None:
        """End all processes."""
        for pid in _processes_below(self.tpux.home):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def passed(self) -> list[str]:
        """Return the points that were passed, each once."""
        return list(dict.fromkeys((self.directory / "passed").read_text().splitlines()))

    def fired(self) -> list[str]:
        """Return the faults that have happened."""
        path = self.directory / "fired"
        return path.read_text().splitlines() if path.exists() else []

    def _is_released(self) -> bool:
        lines = (self.tpux.directory(self.job) / "events.jsonl").read_text().splitlines()
        kinds = [json.loads(line)["type"] for line in lines]
        return "released" in kinds[max(index for index, kind in enumerate(kinds) if kind == "allocated") :]

    def _facts(self) -> dict[str, object]:
        shown = self.tpux.show(self.job)
        facts: dict[str, object] = {name: shown[name] for name in ("state", "attempt", "stage", "restarts")}
        starts = (self.directory / "starts").glob("[0-9]-*")
        facts["starts"] = {path.name: path.read_text().count("start") for path in sorted(starts)}
        facts["set-ups"] = len((self.directory / "setup").read_text().splitlines())
        machines = json.loads((self.tpux.directory(self.job) / "machines/machines.json").read_text())
        facts["allocations"], facts["machines"] = machines["generation"], machines["status"]
        return facts

    def _check_logs(self) -> None:
        for attempt in (1, 2):
            for worker in range(WORKERS):
                whole = b"".join(b"%d %d %d\n" % (worker, attempt, i + 1) for i in range(LINES))
                whole += b"bye\n" if (self.case.job, attempt) == ("stopped", 1) else b""
                found = self._output(attempt, worker).replace(b"Terminated\n", b"")
                lost = (self.case.job, attempt) == ("preempted", 1)  # with the machine
                if not (whole.startswith(found) if lost else found == whole):
                    raise ViolationError(
                        f"attempt {attempt} of worker {worker} wrote {whole!r}, and the log has {found!r}"
                    )

    def _check_events(self) -> None:
        held = 0
        counts: Counter[str] = Counter()
        for line in (self.tpux.directory(self.job) / "events.jsonl").read_text().splitlines():
            event = json.loads(line)
            kind = str(event["type"])
            held = 1 if kind == "allocation-requested" else 0 if kind == "released" else held
            if kind == "allocated" and not held:
                raise ViolationError("machines that were not requested")
            if kind in {"attempt-started", "attempt-ended"}:
                counts[f"{kind} {event['attempt']}"] += 1
        if more := {kind: count for kind, count in counts.items() if count > 1}:
            raise ViolationError(f"events that are there more than once: {more}")

    def _output(self, attempt: int, worker: int) -> bytes:
        return self.tpux.output_so_far(self.job, worker, attempt)

    def _state(self) -> str:
        try:
            state = json.loads((self.tpux.directory(self.job) / "state.json").read_text())["state"]["state"]
        except (FileNotFoundError, StopIteration):
            return ""
        return str(state)

    def _command(self, *words: str) -> str:
        """Run a command. Everything may be stopped meanwhile."""
        return self._end(self.tpux.popen(*words), *words)

    def _end(self, process: subprocess.Popen[bytes], *words: str) -> str:
        deadline = time.monotonic() + TIMEOUT
        while process.poll() is None:
            self._go_on()
            if time.monotonic() > deadline:
                process.kill()
                raise ViolationError(f"tpux {' '.join(words)} does not end")
            time.sleep(0.02)
        out, err = process.communicate()
        if process.returncode:
            raise ViolationError(f"tpux {' '.join(words)}: exit code {process.returncode}: {err.decode()}")
        return out.decode()

    def _wait(self, what: str, condition: Callable[[], bool], *, start: bool = True) -> None:
        """Wait for a condition, and start a supervisor whenever none is alive."""
        deadline = time.monotonic() + TIMEOUT
        while not condition():
            self._go_on()
            if start and not self._supervisors() and not condition():
                self._command("supervisor", "start")
            if time.monotonic() > deadline:
                why = self._command("list", "--all")
                raise ViolationError(f"waited in vain for {what}: {_processes_below(self.tpux.home)}\n{why}")
            time.sleep(0.05)

    def _supervisors(self) -> list[int]:
        path = self.directory / "pids"
        pids = path.read_text().split() if path.exists() else []
        return [int(pid) for pid in pids if Tpux.alive(int(pid))]

    def _go_on(self) -> None:
        """Stop all processes as a supervisor has stopped at a point, and continue all after a while."""
        fired = self.fired()
        for line in fired[self._handled :]:
            if line.startswith("stop "):
                pids = _processes_below(self.tpux.home)
                _send(pids, signal.SIGSTOP)
                time.sleep(STOPPED)
                _send(pids, signal.SIGCONT)
        self._handled = len(fired)


def _send(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def live(case: Case) -> tuple[list[str], list[str]]:
    """Go through one life.

    Returns:
        The points that were passed, and the faults that happened.

    Raises:
        ViolationError: something does not hold.
    """
    with tempfile.TemporaryDirectory(prefix="tpux-faults-", ignore_cleanup_errors=True) as directory:
        life = Life(Path(directory) / "life", case)
        try:
            life.run()
            return life.passed(), life.fired()
        except (ViolationError, AssertionError, ValueError, OSError) as error:
            raise ViolationError(f"{error}\nfaults: {life.fired()}\n{life.tpux.log()}") from error
        finally:
            life.close()


def make_cases(points: dict[str, list[str]], seed: int) -> list[Case]:
    """Return all lives: each point with a kill alone, with a further fault, and with all processes stopped."""
    cases = []
    for job, passed in points.items():
        for point in passed:
            rng = random.Random(f"{seed} {job} {point}")
            cases.append(Case(job, (Fault(point, "kill"),)))
            further = Fault(rng.choice(passed), rng.choice(FURTHER), rng.choice([0, 0, 1]))
            if further.what == "error" and further.point.startswith(("after event", "after write", "after rename")):
                # A write that fails has no effect.
                further = Fault(further.point.replace("after", "before", 1), "error", further.count)
            cases.append(Case(job, (Fault(point, "kill"), further)))
            if point.startswith("before"):
                cases.append(Case(job, (Fault(point, "stop"),)))
    random.Random(seed).shuffle(cases)
    return list({case.key: case for case in cases}.values())


class Progress:
    """What was done with one state of the code, in a file to which all shards append."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._stem = directory / f"real-{figures.digest(*CODE)}"

    def points(self) -> dict[str, list[str]]:
        """Return the points of each job, going through its undisturbed life the first time."""
        path = self._stem.with_suffix(".points.json")
        if not path.exists():
            found = {job: sorted(live(Case(job))[0]) for job in CONFIGS}
            new = path.with_suffix(f".{os.getpid()}")
            new.write_text(json.dumps(found, indent=1))
            with suppress(FileExistsError):  # another shard's: all have the same cases
                os.link(new, path)
            new.unlink()
        return json.loads(path.read_text())  # type: ignore[no-any-return]

    def done(self) -> dict[str, dict[str, object]]:
        """Return the results, by the keys of the cases."""
        return {str(result["case"]): result for result in json_lines.read(self._stem.with_suffix(".jsonl"))}

    def add(self, result: dict[str, object]) -> None:
        """Append a result."""
        json_lines.append(self._stem.with_suffix(".jsonl"), result)


def try_case(case: Case) -> dict[str, object]:
    """Go through a life; return how it went."""
    began = time.monotonic()
    problem, fired = "", []
    try:
        _, fired = live(case)
    except ViolationError as error:
        problem = str(error)
    seconds = round(time.monotonic() - began, 1)
    return {"case": case.key, "fired": len(fired), "seconds": seconds, "problem": problem}


def run(progress: Progress, share: Callable[[int], bool], until: float, seed: int) -> Iterator[dict[str, object]]:
    """Go through the lives that are left; yield each result."""
    done = progress.done()
    for number, case in enumerate(make_cases(progress.points(), seed)):
        if not share(number) or (case.key in done and not done[case.key]["problem"]):
            continue
        if time.monotonic() > until:
            return
        result = try_case(case)
        progress.add(result)
        yield result


def summary(progress: Progress, seed: int) -> dict[str, int]:
    """Return the figures of all shards together."""
    points, done = progress.points(), progress.done()
    return {
        "points": sum(map(len, points.values())),
        "lives": len(done),
        "of": len(make_cases(points, seed)),
        "faults": sum(int(str(result["fired"])) for result in done.values()),
        "violations": sum(bool(result["problem"]) for result in done.values()),
    }


def main() -> int:
    """Go through lives; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.real", description=__doc__)
    parser.add_argument("--shard", default="1/1", help="which share of the lives, such as 2/4")
    parser.add_argument("--minutes", type=float, default=60.0, help="begin no life after that time")
    parser.add_argument("--seed", type=int, default=1, help="of the further faults, and of the order")
    parser.add_argument(
        "--directory", type=Path, default=ROOT / ".cache/faults", help="where it is recorded what was done"
    )
    options = parser.parse_args()
    number, _, count = options.shard.partition("/")
    progress = Progress(options.directory)
    failed = 0

    def share(index: int) -> bool:
        return index % int(count) == int(number) - 1

    for result in run(progress, share, time.monotonic() + 60 * options.minutes, options.seed):
        print(f"{'VIOLATION' if result['problem'] else 'ok'}  {result['seconds']:>5} s  {result['case']}", flush=True)
        if result["problem"]:
            failed += 1
            print(result["problem"], flush=True)
    found = summary(progress, options.seed)
    figures.record("faults-real", found)
    print(", ".join(f"{name} {value}" for name, value in found.items()))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
