"""`tpux exec` (Workers): run a command on a job's workers in parallel."""

from __future__ import annotations

import shlex
import sys
from typing import Annotated

import click
import typer
import typer.core

from tpux import api
from tpux.api.options import DURATION, JobArg, Json, OnlyWorkers, select_workers
from tpux.api.text import worker_prefix

app = api.new_app()
_NOT_STARTED = {126, 127}
"""Exit codes of a command that was not started: no directory, environment or program of that name."""


class _Exec(typer.core.TyperCommand):
    """Leaves the options after the first argument of COMMAND to that command: `tpux exec 9 ls -la`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Insert `--` before COMMAND if the user did not."""
        options = [param for param in self.params if isinstance(param, click.Option)]
        with_value = {name for option in options if not option.is_flag for name in option.opts}
        arguments = index = 0
        while index < len(args) and args[index] != "--":
            if args[index].startswith("-"):
                index += 2 if args[index] in with_value else 1
                continue
            arguments += 1
            if arguments == 2:  # JOB was the first
                args = [*args[:index], "--", *args[index:]]
                break
            index += 1
        return super().parse_args(ctx, args)


@app.command(
    cls=_Exec,
    epilog="Example: tpux exec 12 python -c 'import jax; print(jax.__version__)'"
    "\n\nExample: tpux exec 12 --worker 0-3 'ls out | wc -l'\n\nExample: tpux exec 12 --host df -h",
)
def exec(  # noqa: A001
    job: JobArg,
    command: Annotated[
        list[str],
        typer.Argument(metavar="COMMAND...", help="A shell script, or a program and its arguments."),
    ],
    worker: OnlyWorkers = None,
    host: Annotated[
        bool,
        typer.Option("--host", help="In the home directory of the bare machine, outside of the job's environment."),
    ] = False,
    json: Json = False,
    timeout: Annotated[
        float,
        typer.Option(
            click_type=DURATION, show_default="1h", help="End the command after this time, such as 30s or 2h."
        ),
    ] = 3600,
) -> None:
    """Run a command on a job's workers where its program runs: in the directory of its code, and in its environment.

    While the program runs in a container, so does the command; without a section code or an environment, and on a TPU
    without a job, named by its name, it runs in the home directory. Options of tpux come before the command.

    Each line is prefixed with its worker's number. The exit code is the highest one; 124 after the timeout, 255 for an
    unreachable worker.
    """
    from tpux_shell.run import RemoteCommand, worst

    connection = api.workers(job, or_machines=True)
    beside = not host and not connection.machines
    script = command[0] if len(command) == 1 else shlex.join(command)
    running = RemoteCommand(connection, select_workers(connection, worker), script, timeout, beside=beside)
    outcomes = running.run(None if json else _Printer())
    for index, outcome in outcomes.items():
        if outcome.problem:
            api.say(f"worker {index}: {outcome.problem}")
        elif outcome.code:
            api.say(f"worker {index} exited with {outcome.code}")
    if beside and any(outcome.code in _NOT_STARTED for outcome in outcomes.values()):
        api.say(
            f"hint: it ran where the job's program does; on the bare machine: tpux exec {connection.name} --host ..."
        )
    if json:
        api.emit([{"worker": index, **outcome.to_json()} for index, outcome in outcomes.items()])
    raise typer.Exit(worst(outcomes))


class _Printer:
    """Prints the lines of several workers; a long line, in pieces, has one prefix unless another worker interrupts."""

    def __init__(self) -> None:
        self._open: int | None = None
        self._interrupted: set[int] = set()

    def __call__(self, index: int, lines: bytes) -> None:
        """Print lines of a worker, and a piece of a line that goes on if they do not end with a newline."""
        prefix, ended = worker_prefix(index), lines.endswith(b"\n")
        if index in self._interrupted and lines.startswith(b"\n"):  # the line ended where it was interrupted
            lines = lines[1:]
        self._interrupted.discard(index)
        if not lines:
            return
        begin = b"" if self._open == index else prefix
        if self._open is not None and self._open != index:
            self._interrupted.add(self._open)
            begin = b"\n" + begin
        body = lines.removesuffix(b"\n").replace(b"\n", b"\n" + prefix)
        self._open = None if ended else index
        sys.stdout.buffer.write(b"".join([begin, body, b"\n" if ended else b""]))
        sys.stdout.buffer.flush()
