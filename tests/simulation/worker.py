"""A simulated worker: what `remote/scripts` do on a real one, without a shell. `test_contract.py` compares the two."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

from tests.simulation.shell import SIGKILL, SIGTERM, Timeline, UnknownCommandError, interpret
from tpux import CHUNK_SIZE, Result, Worker
from tpux.remote import script as scripts

HOME = "/home/sim"
_ASSIGNMENT = re.compile(r"""^(\w+)=((?:'[^']*'|"[^"]*"|[^\s'"])*)\n""", re.MULTILINE)
_EXPORT = re.compile(r"^export (\w+)=(.*)$", re.MULTILINE)
_ONCE = re.compile(r"\(set -e; eval (.*?)\) </dev/null 2>&1\nprintf '\\n(\w+) %d\\n' \$\?", re.DOTALL)


@dataclass
class Run:
    """A run on a worker."""

    id: str
    started_at: float | None = None
    timeline: Timeline = field(default_factory=Timeline)
    killed_at: float | None = None
    killed_code: int = 0
    stopped: str | None = None

    def ended_at(self, now: float) -> float | None:
        if self.started_at is None:
            return None
        end = self.started_at + self.timeline.end
        if self.killed_at is not None and self.killed_at < end:
            return self.killed_at
        return end if end <= now else None

    def runs(self, now: float) -> bool:
        return self.started_at is not None and self.ended_at(now) is None

    def code(self, now: float) -> int:
        killed = self.killed_at is not None and self.ended_at(now) == self.killed_at
        return self.killed_code if killed else self.timeline.code

    def output(self, now: float) -> bytes:
        if self.started_at is None:
            return b""
        ended = self.ended_at(now)
        return self.timeline.until((now if ended is None else ended) - self.started_at)

    def kill(self, now: float, code: int) -> None:
        if self.runs(now) and self.killed_at is None:
            self.killed_at, self.killed_code = now, code


class Machine:
    """One simulated worker: its files, and what runs on it.

    Args:
        now: the time.
        advance: lets time pass, while a script waits.
        started: is told of each start of a run: its id and the run.
    """

    def __init__(
        self, now: Callable[[], float], advance: Callable[[float], None], started: Callable[[str, Run], None]
    ) -> None:
        self.now, self.advance, self.started = now, advance, started
        self.alive, self.wiped = True, False
        self.files: dict[str, bytes] = {}
        self.directories: set[str] = set()
        self.runs: dict[str, Run] = {}
        self.forgotten: list[Run] = []
        self.claims: dict[str, tuple[str, str]] = {}

    def destroy(self) -> None:
        self.alive = False
        for run in [*self.runs.values(), *self.forgotten]:
            run.kill(self.now(), SIGKILL)

    def wipe(self) -> None:
        """Lose all files and processes, as a machine that gets another disk."""
        for run in self.runs.values():
            run.kill(self.now(), SIGKILL)
        self.forgotten += self.runs.values()
        self.runs, self.files, self.claims, self.directories, self.wiped = {}, {}, {}, set(), True

    # --- files ------------------------------------------------------------------------------------

    def read(self, path: str, offset: int) -> bytes | None:
        content = self._content(path.removeprefix("~/"))
        return None if content is None else content[offset : offset + CHUNK_SIZE]

    def _content(self, path: str) -> bytes | None:
        directory, _, name = path.rpartition("/")
        run = self.runs.get(directory.removeprefix(".tpux/runs/"))
        if run is None or not directory.startswith(".tpux/runs/"):
            return self.files.get(path)
        now = self.now()
        if name == "output":
            return None if run.started_at is None else run.output(now)
        if name == "exit":
            ended = run.ended_at(now)
            return None if ended is None else f"{run.code(now):<3} {ended:<20.6f}\n".encode()
        if name == "stopped" and run.stopped is not None:
            return f"{run.stopped}\n".encode()
        return None

    # --- scripts ----------------------------------------------------------------------------------

    def run(self, text: str, stdin: bytes) -> Result:
        """Do what a script of core does."""
        if text == "exec sh -s":
            text = stdin.decode(errors="surrogateescape").removeprefix("{\n").removesuffix("\nexit\n}\n")
        if name := script_name(text):
            values = _values(text, name)
            return Result(0, getattr(self, f"_{name}")(values))
        if text in {"true", "sync -f ."} or "df -Pk" in text:  # its disks are never full
            return Result()
        if text.startswith("exec timeout ") and (
            once := _ONCE.fullmatch(stdin.decode() if text.endswith("sh -s") else shlex.split(text)[-1])
        ):
            return self._once(once)
        if match := re.fullmatch(r"wc -c <(.*)", text):
            content = self._content(shlex.split(match[1])[0])
            return Result(1, b"no such file") if content is None else Result(0, str(len(content)).encode())
        if "printf 'found%s" in text:
            return Result(0, self._found_outputs(text))
        if "signalled" in text:  # the processes that hang: none
            return Result()
        raise UnknownCommandError(text)

    def _once(self, match: re.Match[str]) -> Result:
        found = interpret(shlex.split(match[1])[0], {}, frozenset(self.files))
        return Result(0, found.until(found.end) + f"\n{match[2]} {found.code}\n".encode())

    def _found_outputs(self, text: str) -> bytes:
        listed = re.search(r"for directory in (.*); do\n", text)
        directories = shlex.split(listed[1]) if listed else []
        found = [str(number) for number, name in enumerate(directories) if name in self.directories]
        return f"{' '.join(['found', *found])}\n{HOME}".encode()

    def _start(self, values: dict[str, str]) -> bytes:
        run = self.runs.setdefault(values["id"], Run(values["id"]))
        if run.started_at is None and run.stopped is None:
            exports = {name: "".join(shlex.split(value)) for name, value in _EXPORT.findall(values["program"])}
            run.timeline = interpret(values["script"], exports, frozenset(self.files))
            run.started_at = self.now()
            self.started(values["id"], run)
            for _, name in run.timeline.touched:
                self.files[name] = b""
            self.advance(min(float(values["wait"]), run.timeline.end))
        return self._report(run, values)

    def _probe(self, values: dict[str, str]) -> bytes:
        return self._report(self.runs.get(values["id"]), values)

    def _report(self, run: Run | None, values: dict[str, str]) -> bytes:
        now, phase, code, since, ended, reason = self.now(), "absent", "-", "-", "-", ""
        if run is not None and run.started_at is not None:
            since = f"{run.started_at:.2f}"
            if (at := run.ended_at(now)) is not None:
                phase, code, ended, reason = "ended", str(run.code(now)), f"{at:.6f}", run.stopped or ""
            else:
                phase = "running"
        elif run is not None and run.stopped is not None:
            phase, reason = "lost", "it was stopped before it started"
        line = f"tpux-run {phase} {code} {since} {now:.2f} {ended} {reason}\t\n".encode()
        output = run.output(now) if run else b""
        return line + output[int(values["offset"]) :][: int(values["chunk_size"])]

    def _stop(self, values: dict[str, str]) -> bytes:
        name, now, left = values["id"], self.now(), 0
        if name.endswith("*"):
            runs = [run for key, run in self.runs.items() if fnmatchcase(key, name) and run.ended_at(now) is None]
        else:
            runs = [self.runs.setdefault(name, Run(name))]
        for run in runs:
            if values["signal"] != "0" and run.stopped is None and run.ended_at(now) is None:
                run.stopped = values["reason"]
            if values["signal"] == "KILL" or (values["signal"] == "TERM" and not run.timeline.ignores_term):
                run.kill(now, SIGKILL if values["signal"] == "KILL" else SIGTERM)
            left += values["signal"] != "NONE" and run.runs(now)
        return f"tpux-run {left}\n".encode()

    def _left(self, values: dict[str, str]) -> bytes:
        del values
        return b"tpux-run \n"

    def _unfinished(self, values: dict[str, str]) -> bytes:
        key = values["id"]
        mine = [run.id.removeprefix(f"{key}/") for run in self._alive(key)]
        return f"tpux-run {' '.join(mine)}\n".encode()

    def _alive(self, key: str) -> list[Run]:
        return [run for run in self.runs.values() if run.id.startswith(f"{key}/") and run.runs(self.now())]

    def _prepare(self, values: dict[str, str]) -> bytes:
        key, before = values["id"], int(values["before"])
        old = [name for name in self.runs if name.startswith(f"{key}/") and int(name.split("/")[1]) < before]
        left = 0
        for name in old:
            if self.runs[name].runs(self.now()):
                left += 1
            else:
                self.forgotten.append(self.runs.pop(name))
        if values["directory"]:
            self.directories.add(values["directory"])
        return f"tpux-run {left}\n{HOME}\n".encode()

    def _claim(self, values: dict[str, str]) -> bytes:
        round_, holder = self.claims.get(values["id"], ("", ""))
        if round_ != values["round"]:
            holder = values["worker"]
            self.claims[values["id"]] = (values["round"], holder)
        return f"tpux-run {holder}\n".encode()


@cache
def _sources() -> dict[str, str]:
    names = ("start", "probe", "stop", "left", "prepare", "unfinished", "claim")
    return {name: scripts.source("common") + scripts.source(name) for name in names}


def script_name(text: str) -> str:
    """Return which of core's scripts a text is; "" if none."""
    return next((name for name, source in _sources().items() if text.endswith(source)), "") if "\nid=" in text else ""


def _values(text: str, name: str) -> dict[str, str]:
    return {
        key: "".join(shlex.split(value)) if value else ""
        for key, value in _ASSIGNMENT.findall(text.removesuffix(_sources()[name]))
        if key not in {"runner", "signal_script", "watcher"}
    }


class SimHost:
    """A connection to a simulated worker.

    Args:
        worker: the worker.
        machine: what it is now.
        exchange: makes an exchange with it: its name, and what it does.
    """

    def __init__(
        self, worker: Worker, machine: Machine, exchange: Callable[[str, Machine, Callable[[], object]], object]
    ) -> None:
        self.worker = worker
        self._machine = machine
        self._exchange = exchange

    def run(self, script: str, *, stdin: bytes = b"", timeout: float = 60.0) -> Result:
        del timeout
        body = stdin.decode(errors="surrogateescape").removesuffix("\nexit\n}\n") if script == "exec sh -s" else script
        what = script_name(body) or ("steps" if script.startswith("exec timeout") else script.split()[0][:12])
        return self._exchange(what, self._machine, lambda: self._machine.run(script, stdin))  # type: ignore[return-value]

    def follow(self, script: str, listen: Callable[[bytes], None], *, stdin: bytes = b"", timeout: float = 60.0) -> int:
        result = self.run(script, stdin=stdin, timeout=timeout)
        listen(result.output)
        return result.code

    def put(self, source: Path | bytes, remote: str, mode: int = 0o600) -> None:
        del mode
        content = source if isinstance(source, bytes) else source.read_bytes()
        key = remote.removeprefix("~/")
        self._exchange("put", self._machine, lambda: self._machine.files.__setitem__(key, content))

    def get(self, remote: str, local: Path) -> None:
        content = self._exchange("get", self._machine, lambda: self._machine.read(remote, 0))
        local.write_bytes(content or b"")  # type: ignore[arg-type]

    def read(self, *pieces: tuple[str, int]) -> list[bytes | None]:
        return self._exchange(  # type: ignore[return-value]
            "read", self._machine, lambda: [self._machine.read(path, offset) for path, offset in pieces]
        )

    def close(self) -> None:
        pass
