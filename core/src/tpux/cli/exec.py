"""`tpux exec`: a command on a job's workers, in parallel."""

from __future__ import annotations

import shlex
import sys
from typing import Annotated

import typer

from tpux.cli.common import JobArg, Json, emit, new_app
from tpux.errors import UsageError

app = new_app()


@app.command(
    epilog="Example: tpux exec 12 -- nvidia-smi\n\nExample: tpux exec 12 --workers 0-3 -- 'cd src && git log -1'",
)
def exec(  # noqa: A001
    job: JobArg,
    command: Annotated[
        list[str], typer.Argument(metavar="-- COMMAND...", help="One word is a shell script, several are a program.")
    ],
    workers: Annotated[str, typer.Option(help="Which workers: all, or numbers such as 0,2 or 0-3.")] = "all",
    json: Json = False,
    timeout: Annotated[str, typer.Option(help="End it after this long, such as 30s or 2h.")] = "1h",
) -> None:
    """Run a command on the workers of a job, in their home directories.

    Each line is printed with its worker's number before it; the exit code is the worst one: 124 where the time was
    up, 255 where a worker could not be reached.
    """
    from tpux.lifecycle.connection import connect_job
    from tpux.lifecycle.exec import Fleet, worst
    from tpux.plugin.sections import seconds

    try:
        limit = float(str(seconds(timeout)))
    except ValueError as error:
        raise UsageError(f"--timeout {timeout}: {error}") from error
    held = connect_job(job)
    chosen = [held.worker(index) for index in numbers(workers, len(held.allocation.workers))]
    script = command[0] if len(command) == 1 else shlex.join(command)
    fleet = Fleet(held, chosen, script, limit)
    outcomes = fleet.run(lambda _, __: None) if json else fleet.run(_print)
    for index, outcome in outcomes.items():
        if outcome.problem:
            typer.echo(f"tpux: worker {index}: {outcome.problem}", err=True)
        elif outcome.code:
            typer.echo(f"tpux: worker {index} exited with {outcome.code}", err=True)
    if json:
        emit([{"worker": index, **outcome.to_json()} for index, outcome in outcomes.items()])
    raise typer.Exit(worst(outcomes))


def numbers(text: str, count: int) -> list[int]:
    """The workers that `all`, `0,2` or `0-3` stands for.

    Raises:
        UsageError: it stands for none.
    """
    if text == "all":
        return list(range(count))
    chosen: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise UsageError(f"--workers {text}: {part!r} is no number of a worker", hint="write all, 0,2 or 0-3")
        chosen += range(int(first), int(last or first) + 1)
    if not chosen or max(chosen) >= count:
        raise UsageError(f"--workers {text}: there are {count} workers, counted from 0")
    return list(dict.fromkeys(chosen))


def _print(index: int, lines: bytes) -> None:
    mark = f"[{index}] ".encode()
    sys.stdout.buffer.write(b"".join(mark + line + b"\n" for line in lines.removesuffix(b"\n").split(b"\n")))
    sys.stdout.buffer.flush()
