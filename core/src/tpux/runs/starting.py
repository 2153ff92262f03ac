"""Starting a run, and looking at it."""

from __future__ import annotations

import re
import shlex
from typing import cast, get_args

from tpux import env
from tpux.hosts import PIECE, Host
from tpux.programs import Command
from tpux.runs.asking import Values, ask, nonsense, source
from tpux.runs.run import Phase, Run, Status

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def start(host: Host, run: Run, script: str | bytes, command: Command, *, offset: int = 0, wait: float = 1.0) -> Status:
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


def poll(host: Host, run: Run, offset: int) -> Status:
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
        more=len(output or b"") >= PIECE,
    )


def probe(host: Host, run: Run, offset: int) -> Status:
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


def _program(run: Run, command: Command) -> bytes:
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
    host: Host, script: str, run: Run, offset: int, values: Values, *, stdin: bytes = b"", wait: float = 0.0
) -> Status:
    """Run a script that reports."""
    values = {"offset": offset, "piece": PIECE, "wait": f"{max(wait, 0.05):.2f}", **values}
    line, output = ask(host, script, run.id, values, stdin=stdin, wait=wait)
    phase, code, since, uptime, reason = line.split(" ", 4)
    if phase not in get_args(Phase):
        raise nonsense(host, line.encode())
    return Status(
        cast("Phase", phase),
        None if code == "-" else int(code),
        output,
        more=len(output) >= PIECE,
        reason=reason,
        age=0.0 if since == "-" else max(0.0, float(uptime) - float(since)),
    )
