"""Start, poll and stop a run on a worker, and read its exit code.

`scripts/runner.sh` records the exit code on the worker, and `scripts/notice.sh` the notice of a preemption; `poll` and
`probe` read them. A run is started once: `start` does nothing where its lock is held, or a start or an exit code is
recorded, so it is safe to repeat after a crash.
"""

from __future__ import annotations

import math
import re
import shlex
from dataclasses import dataclass
from typing import Literal, cast, get_args

from tpux import env
from tpux.model.host import CHUNK_SIZE, OpenHost
from tpux.model.job import Command
from tpux.model.values import VARIABLE_NAME
from tpux.remote.script import Values, bad_reply, call_script, render, source

Phase = Literal["absent", "running", "ended", "lost"]

_PART = re.compile(r"[^/\s\0*?\[\\]+")


@dataclass(frozen=True)
class RemoteProcess:
    """The identity of a run: its directory on the worker, and the marker of its processes.

    Attributes:
        job: the key of the job on the worker, `<store>-<user>-<job>-w<worker>` (`worker_key`).
        attempt: the attempt that it belongs to.
        name: unique within the attempt; `command` for the command. A name that ends in `*` stands, in `stop` only,
            for all runs of the attempt whose names begin so.
    """

    job: str
    attempt: int
    name: str

    def __post_init__(self) -> None:
        for part in (self.job, self.name.removesuffix("*")):
            if not _PART.fullmatch(part) or part in {".", ".."}:
                raise ValueError(f"{part!r} is not valid in the name of a run")

    @property
    def id(self) -> str:
        """The value of `TPUX_RUN_ID` in the environment of its processes."""
        return f"{self.job}/{self.attempt}/{self.name}"

    @property
    def directory(self) -> str:
        """Its directory, relative to the worker's home."""
        return f".tpux/runs/{self.id}"

    @property
    def script(self) -> str:
        """The script's path, relative to the worker's home."""
        return f"{self.directory}/script"

    @property
    def output(self) -> str:
        """The output's path, relative to the worker's home."""
        return f"{self.directory}/output"

    @property
    def exit(self) -> str:
        """The exit code's path, relative to the worker's home."""
        return f"{self.directory}/exit"

    @property
    def disks(self) -> str:
        """The path of how full the worker's disks were when it had failed, relative to the worker's home."""
        return f"{self.directory}/disks"

    @property
    def notice(self) -> str:
        """The path of what announced the end of the machine, relative to the worker's home."""
        return f"{self.directory}/notice"

    @property
    def stopped(self) -> str:
        """The path of why the run was ended before it ended by itself, relative to the worker's home."""
        return f"{self.directory}/stopped"


@dataclass(frozen=True)
class NoticePoller:
    """How a worker waits for the notice of a preemption while a run lasts, and for some time after it.

    Attributes:
        command: a shell command that exits with 0 once a preemption is announced (`Allocation.notice`).
        grace: seconds between the SIGTERM that follows a notice and SIGKILL.
        keep: seconds for which it still waits after a run that has failed, or that got a signal from the machine.
    """

    command: str
    grace: float
    keep: float


@dataclass(frozen=True)
class Status:
    """The state of a run.

    Attributes:
        phase: `absent` was never started; `running`; `ended` has an exit code; `lost` was started, has no exit code,
            and its runner no longer exists.
        code: the exit code as a shell reports it: 128 + n if signal n ended the program.
        output: output from the requested offset on, at most `CHUNK_SIZE` bytes, of a start or a probe fewer.
        more: there may be more output: poll again at once.
        reason: why the run was lost, or why it was stopped (`stop`'s `reason`).
        age: seconds since it started, by the worker's clock; 0 in the answer of `poll`.
        ended_at: when it ended by the worker's clock, in seconds since the epoch; None if that is unknown.
        notice: what announced a preemption of the worker during the run, "" if nothing did.
        signal: the signal that the machine, not tpux, sent to its processes during the run, "" if none.
        truncated: its program was found for the first time to have truncated its output (`remote/output.py`).
    """

    phase: Phase
    code: int | None = None
    output: bytes = b""
    more: bool = False
    reason: str = ""
    age: float = 0.0
    ended_at: float | None = None
    notice: str = ""
    signal: str = ""
    truncated: bool = False


def worker_key(job: str, worker: int) -> str:
    """Return the key of a job's runs on one worker: several workers may share a home directory.

    Args:
        job: the job's key.
        worker: the worker's number.
    """
    return f"{job}-w{worker}"


_MOST_REPORTED = 64 * 1024
"""Bytes of output that a start or a probe returns: all of it must arrive within its timeout, also on a slow link."""
NO_DIRECTORY = 126
"""The exit code of a program whose directory does not exist: the shell's for a command that cannot be executed."""


def start(
    host: OpenHost,
    run: RemoteProcess,
    script: str | bytes,
    command: Command,
    *,
    offset: int = 0,
    wait: float = 1.0,
    notice: NoticePoller | None = None,
) -> Status:
    """Start a run unless it was started before, and wait briefly for its end.

    Idempotent, also if called from several places at once: later callers get the run's state.

    Args:
        host: the worker.
        run: the run.
        script: the content of the file `run.script`.
        command: the argument vector to execute, its directory, and its environment.
        offset: how many bytes of the output are known already.
        wait: how many seconds to wait for the end; a run that ends before costs this round trip only.
        notice: how the worker waits for the notice of a preemption; None if it does not.

    Raises:
        HostUnreachableError: it may have been started or not; call again.
        TpuxError: the worker could not start it, such as on a full disk or without `flock`.
        ValueError: a variable's name or value cannot be part of an environment, or the script has a NUL.
    """
    if run.name.endswith("*"):
        raise ValueError(f"{run.name} does not name a single run")
    program = _program(run, command)
    body = script if isinstance(script, str) else script.decode(errors="surrogateescape")
    if "\0" in program + body:
        raise ValueError("neither an argument, a variable, a directory nor a script can contain a NUL")
    values: Values = {
        "program": program,
        "script": body,
        "timed": "yes" if command.env else "",
        "runner": source("disks") + source("runner"),
        "watcher": _watcher(run, notice) if notice else "",
        "keep": math.ceil(notice.keep) if notice else 0,
    }
    return _report(host, "start", run, offset, values, is_secret=bool(command.env), wait=wait)


def poll(host: OpenHost, run: RemoteProcess, offset: int) -> Status:
    """Read new output and the exit code, as cheaply as possible.

    A run whose runner was killed still looks as if it were running; `probe` notices that.

    Args:
        host: the worker.
        run: the run.
        offset: how many bytes of the output are known already.

    Raises:
        HostUnreachableError: the worker did not answer.
    """
    # The exit code first: if it is there, the output that is read after it is complete, and so is a signal.
    paths = ((run.exit, 0), (run.output, offset), (run.notice, 0), (run.stopped, 0))
    code, output, announced, stopped = host.read(*paths)
    notice, signal = _announced((announced or b"").decode(errors="replace"))
    more = len(output or b"") >= CHUNK_SIZE
    if code is None:
        if output is None:
            return Status("absent")
        return Status("running", None, output, more, notice=notice, signal=signal)
    number, _, ended = code.decode(errors="replace").strip().partition(" ")
    if not number.isdecimal():
        raise bad_reply(host, code)
    reason = (stopped or b"").decode(errors="replace").partition("\n")[0]
    return Status("ended", int(number), output or b"", more, reason, 0.0, _time(ended), notice, signal)


def has_ended(host: OpenHost, run: RemoteProcess) -> bool:
    """Return whether the exit code of a run is recorded.

    Raises:
        HostUnreachableError: the worker did not answer.
    """
    return host.read((run.exit, 0))[0] is not None


def read_notice(host: OpenHost, run: RemoteProcess) -> str:
    """Return what announced a preemption of the worker during the run, also after its end; "" if nothing did.

    Raises:
        HostUnreachableError: the worker did not answer.
    """
    return _announced((host.read((run.notice, 0))[0] or b"").decode(errors="replace"))[0]


def _announced(line: str) -> tuple[str, str]:
    """Return the notice and the signal that the content of the file `RemoteProcess.notice` stands for."""
    kind, _, text = " ".join(line.split()).partition(" ")
    text = "".join(char for char in text if char.isprintable())
    return (text or "announced" if kind == "notice" else "", text if kind == "signal" else "")


def probe(host: OpenHost, run: RemoteProcess, offset: int) -> Status:
    """Full liveness check (lock and boot id). Costs one process on the worker.

    Args:
        host: the worker.
        run: the run.
        offset: how many bytes of the output are known already.

    Raises:
        HostUnreachableError: the worker did not answer.
        TpuxError: the script failed.
    """
    return _report(host, "probe", run, offset, {})


def _program(run: RemoteProcess, command: Command) -> str:
    """Return the script that becomes the program: it records its session, and sets its environment.

    The values of variables may be secret: with any, it empties its file, which the shell has read to the end by then.
    """
    lines = ["{", f"echo $$ >{shlex.quote(run.directory)}/session", *[': >"$0"'] * bool(command.env)]
    return "\n".join([*lines, execute(command), "}\n"])


def execute(command: Command) -> str:
    """Return shell lines that set a command's environment, change into its directory, and become it."""
    lines = list[str]()
    for name, value in command.env.items():
        if name in {env.RUN_ID, env.RUN_HOME}:
            continue  # the caller sets them
        if not VARIABLE_NAME.fullmatch(name):
            raise ValueError(f"{name!r} is not a valid name of a variable")
        lines.append(f"export {name}={shlex.quote(value)}")
    if command.cwd != ".":
        problem = f"tpux: {command.cwd} is not there{command.way_out}"
        fails = f"{{ echo {shlex.quote(problem)} >&2; exit {NO_DIRECTORY}; }}"
        lines.append(f"cd -- {shlex.quote(command.cwd)} || {fails if command.beside else f'exit {NO_DIRECTORY}'}")
    return "\n".join([*lines, f"exec {shlex.join(command.argv)}"])


def _report(
    host: OpenHost,
    script: str,
    run: RemoteProcess,
    offset: int,
    values: Values,
    *,
    is_secret: bool = False,
    wait: float = 0.0,
) -> Status:
    """Call a script that ends with `report`, and return the reported state.

    Args:
        host: a connection to the worker.
        script: the name of the script.
        run: the process that it is about.
        offset: the offset from which its output is returned.
        values: the script's variables.
        is_secret: the values may be secret: they are no part of an argument, which others can read.
        wait: how many seconds the script may wait for the end of the process.
    """
    values = {"offset": offset, "chunk_size": _MOST_REPORTED, "wait": f"{max(wait, 0.05):.2f}", **values}
    line, output = call_script(host, script, run.id, values, is_secret=is_secret, wait=wait)
    line, _, announced = line.partition("\t")
    phase, code, since, uptime, ended, reason = line.split(" ", 5)
    notice, sent = _announced(announced)
    if phase not in get_args(Phase):
        raise bad_reply(host, line.encode())
    return Status(
        cast("Phase", phase),
        None if code == "-" else int(code),
        output,
        more=len(output) >= _MOST_REPORTED,
        reason=reason,
        age=0.0 if since == "-" else max(0.0, float(uptime) - float(since)),
        ended_at=_time(ended),
        notice=notice,
        signal=sent,
    )


def _time(text: str) -> float | None:
    """Return the time that `date +%s.%N` printed; None if it could not be run, or has no nanoseconds."""
    try:
        return float(text)
    except ValueError:
        return None


def _watcher(run: RemoteProcess, notice: NoticePoller) -> str:
    """Return the script that waits on the worker for the notice of a preemption, and then ends the run."""
    stop = render("stop", run.id, {"reason": "a preemption was announced", "signal_script": source("signal")})
    return render("notice", run.id, {"notice": notice.command, "grace": math.ceil(notice.grace), "stop_script": stop})


Signal = Literal["TERM", "KILL", "0", "NONE"]


def stop(host: OpenHost, run: RemoteProcess, *, signal: Signal, reason: str = "") -> int:
    """Send a signal to every process of a run; a run that was not started yet can no longer be started.

    Its processes are those with its id and the worker's home in their environment (`TPUX_RUN_ID`, `TPUX_RUN_HOME`),
    daemons too, and those of other users if `sudo` needs no password; while its runner lives, also the program's
    whole session; and all descendants of these. SIGTERM is sent to a process once, however often this is called;
    SIGKILL each time. Zombies do not count.

    Args:
        host: the worker.
        run: the run; if its name ends in `*`, all those that have been started and have not ended. (What an ended
            step has left behind, such as the daemon of a mount, keeps running.)
        signal: `TERM`, `KILL`, `0`, which only counts the processes, or `NONE`, which only records the reason.
        reason: becomes `Status.reason`; the first one stays.

    Returns:
        How many are still alive after a moment; 0 means that the run has ended, except with `NONE`.

    Raises:
        HostUnreachableError: the worker did not answer.
        TpuxError: the script failed.
    """
    values: Values = {"signal": signal, "reason": " ".join(reason.split()), "signal_script": source("signal")}
    return int(call_script(host, "stop", run.id, values)[0])


def left(host: OpenHost, run: RemoteProcess) -> list[list[str]]:
    """Return the arguments of each live process of a run, such as of one that was put into the background.

    A container's processes are not seen: they end with it.

    Raises:
        HostUnreachableError: the worker did not answer.
        TpuxError: the script failed.
    """
    lines = call_script(host, "left", run.id, {})[1].decode(errors="replace").splitlines()
    return [["".join(char for char in word if char.isprintable()) for word in line.split("\t")] for line in lines]


def save_stacks(host: OpenHost, run: RemoteProcess) -> int:
    """Write the stacks of a run's Python processes to its output, once; without py-spy that ends them.

    Returns:
        How many processes were asked to write their stacks.

    Raises:
        HostUnreachableError: the worker did not answer.
        TpuxError: the script failed.
    """
    return int(call_script(host, "stacks", run.id, {}, wait=80.0)[0])
