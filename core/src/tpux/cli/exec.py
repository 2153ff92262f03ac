"""`tpux exec`: run a command on a job's workers in parallel."""

from __future__ import annotations

import shlex
import sys
from typing import Annotated

import typer

from tpux import durations
from tpux.cli.common import JobArg, Json, emit, new_app
from tpux.errors import UsageError

app = new_app()


@app.command(
    epilog="Example: tpux exec 12 -- nvidia-smi\n\nExample: tpux exec 12 --workers 0-3 -- 'cd src && git log -1'",
)
def exec(  # noqa: A001
    job: JobArg,
    command: Annotated[
        list[str],
        typer.Argument(metavar="-- COMMAND...", help="A shell script, or a program and its arguments."),
    ],
    workers: Annotated[str, typer.Option(help="The workers: all, or numbers such as 0,2 or 0-3.")] = "all",
    json: Json = False,
    timeout: Annotated[str, typer.Option(help="End the command after this time, such as 30s or 2h.")] = "1h",
) -> None:
    """Run a command in the home directory of a job's workers.

    Each line is prefixed with its worker's number. The exit code is the highest one; 124 after the timeout, 255 for an
    unreachable worker.
    """
    from tpux.lifecycle.connection import connect_job
    from tpux.lifecycle.exec import RemoteCommand, worst

    try:
        limit = durations.parse(timeout)
    except ValueError as error:
        raise UsageError(f"--timeout {timeout}: {error}") from error
    connection = connect_job(job)
    chosen = [connection.worker(index) for index in numbers(workers, len(connection.allocation.workers))]
    script = command[0] if len(command) == 1 else shlex.join(command)
    running = RemoteCommand(connection, chosen, script, limit)
    outcomes = running.run(lambda _, __: None) if json else running.run(_print)
    for index, outcome in outcomes.items():
        if outcome.problem:
            typer.echo(f"tpux: worker {index}: {outcome.problem}", err=True)
        elif outcome.code:
            typer.echo(f"tpux: worker {index} exited with {outcome.code}", err=True)
    if json:
        emit([{"worker": index, **outcome.to_json()} for index, outcome in outcomes.items()])
    raise typer.Exit(worst(outcomes))


def numbers(text: str, count: int) -> list[int]:
    """Return the worker numbers that `all`, `0,2` or `0-3` names.

    Args:
        text: the option's value.
        count: how many workers there are.

    Raises:
        UsageError: it names none, or one that does not exist.
    """
    if text == "all":
        return list(range(count))
    chosen: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise UsageError(f"--workers {text}: {part!r} is not a worker number", hint="use all, 0,2 or 0-3")
        chosen += range(int(first), int(last or first) + 1)
    if not chosen or max(chosen) >= count:
        raise UsageError(f"--workers {text}: there are {count} workers, numbered from 0")
    return list(dict.fromkeys(chosen))


def _print(index: int, lines: bytes) -> None:
    prefix = f"[{index}] ".encode()
    sys.stdout.buffer.write(b"".join(prefix + line + b"\n" for line in lines.removesuffix(b"\n").split(b"\n")))
    sys.stdout.buffer.flush()
