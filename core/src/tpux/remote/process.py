"""What a run is, and what is known of one."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import Literal, cast, get_args

from tpux import env
from tpux.plugin.host import CHUNK_SIZE, Host
from tpux.plugin.job import Command
from tpux.remote.script import Values, bad_reply, call_script, source

Phase = Literal["absent", "running", "ended", "lost"]

_PART = re.compile(r"[^/\s\0*?\[\\]+")


@dataclass(frozen=True)
class RemoteProcess:
    """Where a run lives and what marks its processes.

    Attributes:
        job: the job's key, `<store>-<user>-<job>`.
        attempt: the attempt that it belongs to.
        name: unique within the attempt; `command` for the command. One that ends in `*` stands, for
            `stop` alone, for all runs of the attempt whose names begin so.
    """

    job: str
    attempt: int
    name: str

    def __post_init__(self) -> None:
        for part in (self.job, self.name.removesuffix("*")):
            if not _PART.fullmatch(part) or part in {".", ".."}:
                raise ValueError(f"a run cannot be called {part!r}")

    @property
    def id(self) -> str:
        """The value of `TPUX_RUN_ID` in the environment of its processes."""
        return f"{self.job}/{self.attempt}/{self.name}"

    @property
    def directory(self) -> str:
        """Its directory, from the worker's home."""
        return f".tpux/runs/{self.id}"

    @property
    def script(self) -> str:
        """The script's path, from the worker's home."""
        return f"{self.directory}/script"

    @property
    def output(self) -> str:
        """The path of its output, from the worker's home."""
        return f"{self.directory}/output"

    @property
    def exit(self) -> str:
        """The path of its exit code, from the worker's home."""
        return f"{self.directory}/exit"


@dataclass(frozen=True)
class Status:
    """What a look at a run brought up.

    Attributes:
        phase: `absent` never started, `running`, `ended` with a code, `lost` started once, without an
            exit code, and nobody holds its lock.
        code: the exit code as a shell tells it: 128 + n where signal n ended the program.
        output: what it wrote, from the offset that was asked for.
        more: a full piece came: read on at once.
        reason: why a run was lost, or was stopped (`stop`'s word).
        age: seconds since it started, by the worker's clock; 0 where `poll` answers.
    """

    phase: Phase
    code: int | None = None
    output: bytes = b""
    more: bool = False
    reason: str = ""
    age: float = 0.0


_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def start(
    host: Host, run: RemoteProcess, script: str | bytes, command: Command, *, offset: int = 0, wait: float = 1.0
) -> Status:
    """Start a run unless it was ever started, and wait a little for its end.

    Safe to repeat, from several places at once too: whoever comes later gets the state it is in.

    Args:
        host: the worker.
        run: where it lives.
        script: what `run.script` shall contain.
        command: the argument vector to execute in the home directory, and its environment.
        offset: how much of the output is known already.
        wait: how many seconds the end is waited for; a shorter run costs this one round trip alone.

    Raises:
        HostUnreachableError: it may have started or not; call again.
        TpuxError: the worker could not start it: a full disk, no `flock`.
        ValueError: a variable's name or value that no environment can hold.
    """
    if run.name.endswith("*"):
        raise ValueError(f"{run.name} is the name of no one run")
    program = _program(run, command)
    body = script if isinstance(script, bytes) else script.encode(errors="surrogateescape")
    values: Values = {"program_size": len(program), "script_size": len(body), "runner": source("runner")}
    return _look(host, "start", run, offset, values, stdin=b"".join((program, body, b"tpux-end\n")), wait=wait)


def poll(host: Host, run: RemoteProcess, offset: int) -> Status:
    """Read what is new, as cheaply as can be; whether a run that is silent still lives, `probe` knows.

    Args:
        host: the worker.
        run: the run.
        offset: how much of the output is known already.

    Raises:
        HostUnreachableError: the worker did not answer.
    """
    # The exit code first: where it is there, the output read after it is complete.
    code, output = host.read((run.exit, 0), (run.output, offset))
    if output is None and code is None:
        return Status("absent")
    return Status(
        "running" if code is None else "ended",
        None if code is None else int(code),
        output or b"",
        more=len(output or b"") >= CHUNK_SIZE,
    )


def probe(host: Host, run: RemoteProcess, offset: int) -> Status:
    """Look at the lock and the boot id too: the whole truth about a run, for the price of a process there.

    Args:
        host: the worker.
        run: the run.
        offset: how much of the output is known already.

    Raises:
        HostUnreachableError: the worker did not answer.
        TpuxError: it answered something else.
    """
    return _look(host, "probe", run, offset, {})


def _program(run: RemoteProcess, command: Command) -> bytes:
    """The script that becomes the program: it tells its session, unlinks itself, and takes its environment."""
    lines = [f"echo $$ >{shlex.quote(run.directory)}/session", 'rm -f "$0"']
    for name, value in command.env.items():
        if name in {env.RUN_ID, env.RUN_HOME}:
            raise ValueError(f"{name} marks the processes of a run and cannot be set")
        if not _NAME.fullmatch(name):
            raise ValueError(f"no variable can be called {name!r}")
        lines.append(f"export {name}={shlex.quote(value)}")
    lines.append(f"exec {shlex.join(command.argv)}\n")
    program = "\n".join(lines).encode(errors="surrogateescape")
    if b"\0" in program:
        raise ValueError("neither an argument nor a variable can contain a NUL")
    return program


def _look(
    host: Host, script: str, run: RemoteProcess, offset: int, values: Values, *, stdin: bytes = b"", wait: float = 0.0
) -> Status:
    """Run a script that reports."""
    values = {"offset": offset, "piece": CHUNK_SIZE, "wait": f"{max(wait, 0.05):.2f}", **values}
    line, output = call_script(host, script, run.id, values, stdin=stdin, wait=wait)
    phase, code, since, uptime, reason = line.split(" ", 4)
    if phase not in get_args(Phase):
        raise bad_reply(host, line.encode())
    return Status(
        cast("Phase", phase),
        None if code == "-" else int(code),
        output,
        more=len(output) >= CHUNK_SIZE,
        reason=reason,
        age=0.0 if since == "-" else max(0.0, float(uptime) - float(since)),
    )


Signal = Literal["TERM", "KILL", "0"]


def stop(host: Host, run: RemoteProcess, *, signal: Signal, reason: str = "") -> int:
    """Send a signal to every process of a run; one that was not started yet will not be any more.

    Its processes are those that carry its id and the worker's home in their environment (`TPUX_RUN_ID`,
    `TPUX_RUN_HOME`), daemons too, those of other users where `sudo` asks for no password; and while its
    runner lives the program's whole session. SIGTERM is sent to a process once, however often this is
    called; SIGKILL each time. Zombies do not count.

    Args:
        host: the worker.
        run: the run; where its name ends in `*`, all that have begun and not ended. (What an ended step
            left behind, such as the daemon of a mount, is meant to stay.)
        signal: `TERM`, `KILL`, or `0`, which only counts them.
        reason: the word that `Status.reason` has for it from now on; the first one stays.

    Returns:
        How many are still alive after a moment; 0 says that it has ended.

    Raises:
        HostUnreachableError: the worker did not answer.
        TpuxError: it answered something else.
    """
    values: Values = {"signal": signal, "reason": " ".join(reason.split()), "signal_script": source("signal")}
    return int(call_script(host, "stop", run.id, values)[0])


def unfinished(host: Host, job: str) -> list[RemoteProcess]:
    """Those runs of a job (of its key) whose runner is alive, in no order.

    Raises:
        HostUnreachableError: the worker did not answer.
    """
    found = [name.split("/", 1) for name in call_script(host, "unfinished", job, {})[0].split()]
    return [RemoteProcess(job, int(attempt), name) for attempt, name in found]


def remove_old(host: Host, job: str, before_attempt: int) -> int:
    """Delete the run directories of a job's earlier attempts, but for those that still run.

    Returns:
        How many still run.

    Raises:
        HostUnreachableError: the worker did not answer.
    """
    return int(call_script(host, "sweep", job, {"below": before_attempt})[0])


def remove(host: Host, job: str) -> int:
    """Delete all run directories of a job, but for those that still run; how many those are."""
    return remove_old(host, job, 2**31 - 1)
