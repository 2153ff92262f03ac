"""`tpux logs`: print the output of a job's program or of a setup module."""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tpux.api.times import SINCE, parse_since
from tpux.cli.common import MaybeJobArg, OnlyWorkers, find_job, new_app, say, short_id, worker_numbers
from tpux.console import worker_prefix
from tpux.errors import UsageError

if TYPE_CHECKING:
    from tpux.store.record import Record

app = new_app()


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
    worker: OnlyWorkers = None,
    module: Annotated[str | None, typer.Option(help="A setup module's log, or `tpu` for the allocator's.")] = None,
    attempt: Annotated[int | None, typer.Option(min=1, help="An earlier attempt; default: the latest.")] = None,
) -> None:
    """Print the output of a job; each line is prefixed with its worker's number.

    With -f, while workers are set up, the logs of the modules are followed, and then the output of the program.

    On a terminal a progress bar is shown in its last state. The log of a single worker (--worker 3) is printed byte for
    byte.
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
    if follow and (module or attempt):
        raise UsageError("-f follows the current attempt", hint="omit --module and --attempt")
    if follow:
        from tpux.cli.follow import follow as follow_job

        raise typer.Exit(
            follow_job(store, record, workers=chosen or None, since=None, tail=tail, after=after, modules=True)
        )
    paths = _module_logs(record, module) if module else _command_logs(record, attempt)
    if missing := [index for index in chosen if index not in paths]:
        raise UsageError(f"job {short_id(record.id)} has no log of worker {missing[0]}", hint=_hint(record, paths))
    if not paths:
        what = f"module {module}" if module else "its program"
        raise UsageError(f"job {short_id(record.id)} has no log of {what}", hint=_hint(record, paths))
    prefixed = len(chosen) != 1 and not (module and len(paths) == 1)
    _print({index: paths[index] for index in chosen or paths}, prefixed=prefixed, tail=tail, after=after)
    if record.state.hint and attempt is None:
        say(f"{record.state.state}: {record.state.why}")
        say(f"hint: {record.state.hint}")


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


def _print(paths: dict[int, Path], *, prefixed: bool, tail: int | None, after: float | None) -> None:
    from tpux.cli.tail import as_shown
    from tpux.store.output import start_of

    out, shown = sys.stdout.buffer, as_shown()
    for worker, path in paths.items():
        with path.open("rb") as file:
            file.seek(start_of(path, tail, after))
            if not prefixed:
                shutil.copyfileobj(file, out)
                continue
            prefix = worker_prefix(worker)
            for line in file:
                out.write(shown(prefix + line.removesuffix(b"\n")) + b"\n")
    out.flush()
