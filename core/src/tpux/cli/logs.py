"""`tpux logs`: print the output of a job's program or of a setup module."""

from __future__ import annotations

import re
import shutil
import sys
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from tpux.api.times import SINCE, parse_since
from tpux.cli.common import MaybeJobArg, OnlyWorkers, find_job, new_app, say, short_id, worker_numbers
from tpux.cli.tail import Shown
from tpux.errors import UsageError
from tpux.store.output import INTERVAL, start_of

if TYPE_CHECKING:
    from tpux.store import Store
    from tpux.store.record import Record

app = new_app()

FOLLOWED = 20
"""Lines of each worker with which `-f` begins on a terminal."""
CONTEXT = 21
"""Lines that `--first-error` prints."""
_ERROR = re.compile(
    rb"^Traceback \(most recent|\b\w*(?:Error|Exception)\b|\b(?i:error|fatal|panic|aborted|killed)\b:"
    rb"|\b(?i:segmentation fault|core dumped|out of memory|command not found|no such file)\b"
)


def _regex(pattern: str | None) -> str | None:
    try:
        re.compile((pattern or "").encode())
    except re.error as error:
        raise UsageError(f"--grep {pattern}: {error}", hint="write . * [ ( and so on as \\. \\* \\[ \\(") from error
    return pattern


@app.command(
    epilog="Example: tpux logs 12 -f -n 20\n\nExample: tpux logs 12 --module venv --worker 0-3",
)
def logs(
    job: MaybeJobArg = None,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Continue until the job has ended.")] = False,
    tail: Annotated[
        int | None, typer.Option("-n", "--tail", metavar="N", min=0, help="Only the last N lines of each worker.")
    ] = None,
    since: Annotated[
        str | None, typer.Option(help=f"Only output since this time, and up to 10 s before: {SINCE}.")
    ] = None,
    grep: Annotated[
        str | None, typer.Option(metavar="REGEX", help="Only lines in which this is found.", callback=_regex)
    ] = None,
    timestamps: Annotated[
        bool, typer.Option("--timestamps", help="Begin lines with the time of their fetch, up to 10 s early.")
    ] = False,
    first_error: Annotated[
        bool,
        typer.Option("--first-error", help="Only the first line of any worker that reports an error, and 20 more."),
    ] = False,
    worker: OnlyWorkers = None,
    module: Annotated[str | None, typer.Option(help="A setup module's log, or `tpu` for the allocator's.")] = None,
    attempt: Annotated[int | None, typer.Option(min=1, help="An earlier attempt; default: the latest.")] = None,
) -> None:
    """Print the output of a job; each line is prefixed with its worker's number.

    With -f, while workers are set up, the logs of the modules are followed, and then the output of the program.

    On a terminal a progress bar is shown in its last state, lines that several workers print are one line, and -f
    begins with the last lines. The log of a single worker (--worker 3) is printed byte for byte.
    """
    from tpux.store import Store
    from tpux.supervisor import client

    store = Store()
    record = find_job(store, job)
    chosen = worker_numbers(worker)
    if not record.refresh().done:
        (client.notify if follow else client.ensure_running)(store)
    if since is not None and module:
        raise UsageError("--since is for the output of the program", hint="omit --module")
    after = None if since is None else parse_since(since, time.time())
    shown = Shown(re.compile(grep.encode()) if grep else None, timestamps)
    if follow:
        if module or attempt or first_error:
            raise UsageError("-f follows the current attempt", hint="omit --module, --attempt and --first-error")
        _follow(store, record, chosen, tail, after, shown)
    paths = _select(record, chosen, module, attempt)
    offsets = {index: start_of(path, tail, after) for index, path in paths.items()}
    if first_error:
        first, offset = _first_error(record, paths, offsets)
        _print({first: paths[first]}, {first: offset}, shown, CONTEXT)
    elif shown == Shown() and len(paths) == 1 and (chosen or module):
        [(index, path)] = paths.items()
        with path.open("rb") as file:
            file.seek(offsets[index])
            shutil.copyfileobj(file, sys.stdout.buffer)
            sys.stdout.buffer.flush()
    else:
        _print(paths, offsets, shown)
    if record.state.hint and attempt is None:
        say(f"{record.state.state}: {record.state.why}")
        say(f"hint: {record.state.hint}")


def _follow(
    store: Store, record: Record, chosen: list[int], tail: int | None, after: float | None, shown: Shown
) -> NoReturn:
    from tpux.cli.follow import follow

    if tail is None and after is None and sys.stdout.isatty():
        tail = FOLLOWED
    workers = chosen or None
    raise typer.Exit(
        follow(store, record, workers=workers, since=None, tail=tail, after=after, modules=True, shown=shown)
    )


def _select(record: Record, chosen: list[int], module: str | None, attempt: int | None) -> dict[int, Path]:
    """Return the logs of the chosen workers.

    Raises:
        UsageError: one of them, or all, do not exist.
    """
    paths = _module_logs(record, module) if module else _command_logs(record, attempt)
    if missing := [index for index in chosen if index not in paths]:
        raise UsageError(f"job {short_id(record.id)} has no log of worker {missing[0]}", hint=_hint(record, paths))
    if not paths:
        what = f"module {module}" if module else "its program"
        raise UsageError(f"job {short_id(record.id)} has no log of {what}", hint=_hint(record, paths))
    return {index: paths[index] for index in chosen or paths}


def _command_logs(record: Record, attempt: int | None) -> dict[int, Path]:
    number = attempt or record.refresh().attempt
    paths = _by_worker(record.logs / f"attempt-{number}", "command")
    if attempt is not None and not paths:
        raise UsageError(f"job {short_id(record.id)} has no log of attempt {attempt}", hint=_hint(record, paths))
    return paths


def _module_logs(record: Record, module: str) -> dict[int, Path]:
    if module == "tpu":
        return {0: record.logs / "tpu.log"} if (record.logs / "tpu.log").exists() else {}
    return _by_worker(record.logs, module)


def _by_worker(directory: Path, what: str) -> dict[int, Path]:
    found = {
        int(path.stem.rpartition("_")[2]): path
        for path in directory.glob("*_worker_*.log")
        if path.stem.rpartition("_worker_")[0] == what
    }
    return dict(sorted(found.items()))


def _hint(record: Record, paths: dict[int, Path]) -> str:
    if paths:
        return f"there are logs of workers {', '.join(map(str, paths))}"
    attempts = sorted(
        int(path.name.rpartition("-")[2]) for path in record.logs.glob("attempt-*") if _by_worker(path, "command")
    )
    modules = sorted({path.stem.rpartition("_worker_")[0] or path.stem for path in record.logs.glob("*.log")})
    options = [f"--attempt {' or '.join(map(str, attempts))}"] if attempts else []
    options += [f"--module {' or '.join(modules)}"] if modules else []
    hints = [f"it has other logs: {', '.join(options)}"] if options else []
    if not record.state.ended:
        hints.append(f"tpux logs -f {short_id(record.id)} waits for output")
    return "; ".join(hints)


def _print(paths: dict[int, Path], offsets: dict[int, int], shown: Shown, count: int | None = None) -> None:
    """Print logs from these offsets on, at most so many lines of each."""
    lines = {worker: islice(_lines(path, offsets[worker]), count) for worker, path in paths.items()}
    sys.stdout.buffer.writelines(line + b"\n" for line in shown.lines(lines))
    sys.stdout.buffer.flush()


def _lines(path: Path, offset: int) -> Iterator[tuple[float, bytes]]:
    """Yield the lines of a log, each with the time at which it was fetched, or up to 10 s before."""
    entries = _times(path)
    at = path.stat().st_mtime if not entries else entries[0][0]
    with path.open("rb") as file:
        file.seek(offset)
        for line in file:
            while entries and entries[0][1] <= offset:
                at = entries.pop(0)[0]
            yield at, line.removesuffix(b"\n")
            offset += len(line)


def _times(path: Path) -> list[tuple[float, int]]:
    from tpux.model.program_output import read_times

    try:
        return [*read_times(path)]
    except FileNotFoundError:
        return []


def _first_error(record: Record, paths: dict[int, Path], offsets: dict[int, int]) -> tuple[int, int]:
    """Return the worker that was the first to report an error, and the offset of that line in its log.

    Of workers whose lines were fetched within 10 s, the order is unknown: the one that has failed is the first then.

    Raises:
        UsageError: there is no such line.
    """
    failed = record.state.failure.worker if record.state.failure else None
    found = []
    for worker, path in paths.items():
        offset = offsets[worker]
        for at, line in _lines(path, offset):
            if _ERROR.search(line):
                found.append((at // INTERVAL, worker != failed, worker, offset))
                break
            offset += len(line) + 1
    if not found:
        raise UsageError(
            f"job {short_id(record.id)}: no line of its output names an error",
            hint=f"its end: tpux logs {short_id(record.id)} -n 50",
        )
    _, _, worker, offset = min(found)
    say(f"the first error is on worker {worker}")
    return worker, offset
