"""`tpux cp` (Workers): copy files and directories to or from a job's workers."""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from tpux import TpuxError, UsageError, api
from tpux.api.options import OnlyWorkers, select_workers

if TYPE_CHECKING:
    from tpux import Worker
    from tpux.api import JobConnection
    from tpux.api.machines import OpenHost

app = api.new_app()
_SHOWN = 5

# Prints `directory` if the path is one; else which part of the path is no directory, if one that exists is not.
_EXAMINE = """
path={path}
if test -d "$path"; then echo directory; exit; fi
case $path in */) path=${path}x ;; esac
while parent=${path%/*}; [ "$parent" != "$path" ] && [ -n "$parent" ]; do
    if [ -d "$parent" ]; then exit; fi
    if [ -e "$parent" ] || [ -L "$parent" ]; then echo "file $parent"; exit; fi
    path=$parent
done
"""


class _Remote(NamedTuple):
    """A path on a job's workers."""

    job: str
    path: str

    @property
    def text(self) -> str:
        return f"{self.job}:{self.path}"


@app.command(
    epilog="Example: tpux cp 12:train.log .   or: tpux cp data.csv 12:~/data/ --worker 0-3"
    "\n\nExample: tpux cp -r 12:out results"
    "\n\nExample: tpux cp --from-job 12 --checkpoint latest gs://other-bucket/runs"
)
def cp(
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="A file or directory, or JOB:PATH on the job's workers.")
    ],
    target: Annotated[
        str | None, typer.Argument(metavar="TARGET", help="The copy: JOB:PATH, or a file or directory here.")
    ] = None,
    worker: OnlyWorkers = None,
    recursive: Annotated[
        bool, typer.Option("--recursive", "-r", help="Copy directories with all that is in them; links stay links.")
    ] = False,
    from_job: Annotated[
        str | None, typer.Option(metavar="JOB", help="Copy a checkpoint of this job to the URL that is given.")
    ] = None,
    checkpoint: Annotated[str, typer.Option(help="With --from-job: latest, or the name of one.")] = "latest",
    yes: Annotated[bool, typer.Option("-y", "--yes", help="With --from-job: do not ask for confirmation.")] = False,
) -> None:
    """Copy a file or, with -r, a directory to all workers of a job, or from its first one.

    A relative PATH starts where the program does: in the directory of its code, or in the worker's home directory if
    the job has no section code; ~/PATH starts in the home directory. From several workers (--worker), each copy is in a
    directory of its own: TARGET/worker-0.
    """
    if from_job is not None:
        if target is not None or "://" not in source:
            raise UsageError("--from-job takes one URL", hint=f"tpux cp --from-job {from_job} gs://other-bucket/runs")
        _copy_checkpoint(from_job, source, checkpoint, yes=yes)
        return
    if target is None:
        raise UsageError("the TARGET is missing", hint=f"tpux cp {shlex.quote(source)} .")
    start, end = _remote(source), _remote(target)
    if isinstance(start, _Remote) and isinstance(end, Path):
        _download(start, end, worker, into=target.endswith("/"), recursive=recursive)
    elif isinstance(start, Path) and isinstance(end, _Remote):
        _upload(start, end, worker, recursive=recursive)
    else:
        raise UsageError("one of the two must be JOB:PATH, the other a path here", hint="tpux cp 12:train.log .")


def _copy_checkpoint(job: str, url: str, name: str, *, yes: bool) -> None:
    try:
        from tpux_storage.cli import copy_from_job
    except ModuleNotFoundError as error:
        raise TpuxError("checkpoints are copied by a plugin", hint="pip install tpux-plugin-storage") from error
    copy_from_job(job, url, name, yes=yes)


def _remote(text: str) -> _Remote | Path:
    """Parse an argument: what has a colon before the first slash is on a worker, as with scp."""
    job, colon, path = text.partition(":")
    if not colon or "/" in job or not job:
        return Path(text)
    if not path:
        raise UsageError(f"{text}: the path is missing", hint=f"for example {text}train.log")
    if path.startswith("~") and path != "~" and not path.startswith("~/"):
        hint = f"write the path of that user's home directory, or {job}:./{path} for a file of this name"
        raise UsageError(f"{text}: ~ stands for one's own home directory only", hint=hint)
    return _Remote(job, path)


def _full_path(path: str, connection: JobConnection, worker: Worker) -> str:
    """Return a path on a worker as absolute, or relative to the home directory."""
    if path == "~" or path.startswith("~/"):
        return path[2:] or "."
    if path.startswith("/"):
        return path
    directory = connection.program_directory(worker)
    return path if directory == "." else f"{directory}/{path}"


def _upload(file: Path, target: _Remote, worker: list[str] | None, *, recursive: bool) -> None:
    from tpux import sh
    from tpux_shell.directories import pack, upload_directory

    is_directory = file.is_dir()
    if is_directory and not recursive:
        raise UsageError(f"{file} is a directory", hint=f"tpux cp -r {shlex.join([str(file), target.text])}")
    if not is_directory and not file.is_file():
        raise UsageError(f"{file} is not a file")
    connection = api.workers(target.job)
    workers = select_workers(connection, worker)

    def put(host: OpenHost) -> None:
        path = _full_path(target.path, connection, host.worker)
        kind, _, blocking = host.run(sh(_EXAMINE, path=path).script).text.strip("\n").partition(" ")
        if blocking:
            raise _not_a_directory(connection, host.worker, blocking)
        if target.path.endswith("/") or kind == "directory":
            path = f"{path.rstrip('/')}/{file.resolve().name if is_directory else file.name}"
        if is_directory:
            upload_directory(host, archive, path)
        else:
            host.put(file, path, file.stat().st_mode & 0o777)

    with tempfile.TemporaryDirectory(prefix="tpux-cp-") as directory:
        archive = Path(directory) / "archive"
        if is_directory:
            pack(file, archive)
        _report(connection.each(workers, put), f"{file} copied to")


def _not_a_directory(connection: JobConnection, worker: Worker, path: str) -> TpuxError:
    rename = shlex.join(
        ["tpux", "exec", connection.name, "--host", "--worker", str(worker.index), "--", "mv", path, f"{path}.old"]
    )
    return TpuxError(f"{path} is not a directory", hint=f"copy to another path, or rename it: {rename}")


def _download(source: _Remote, target: Path, worker: list[str] | None, *, into: bool, recursive: bool) -> None:
    """Copy a file or a directory from workers.

    Args:
        source: what to copy.
        target: the copy.
        worker: which workers, the first one by default.
        into: the target is a directory, which may have to be created.
        recursive: directories are copied.
    """
    from tpux_shell.directories import download_directory

    connection = api.workers(source.job)
    workers = select_workers(connection, worker or ["0"])
    name = "" if source.path == "~" else Path(source.path).name
    into = into or len(workers) > 1
    if into and target.exists() and not target.is_dir():
        raise UsageError(f"{target} is not a directory")

    def get(host: OpenHost) -> None:
        path = _full_path(source.path, connection, host.worker)
        is_directory = _find(host, path) == "directory"
        if is_directory and not recursive:
            again = shlex.join([source.text, str(target)])
            raise TpuxError(f"{path} is a directory", hint=f"tpux cp -r {again}")
        local = target / name if into or target.is_dir() else target
        if len(workers) > 1:
            local = target / f"worker-{host.worker.index}" / name
        if into:
            local.parent.mkdir(parents=True, exist_ok=True)
        if not is_directory:
            host.get(path, local)
        elif left_out := download_directory(host, path, local):
            names = ", ".join(left_out[:_SHOWN]) + (", ..." if len(left_out) > _SHOWN else "")
            api.say(f"worker {host.worker.index}: not copied, because it leads out of {path} or is no file: {names}")

    _report(connection.each(workers, get), f"{source.path} copied from")


def _find(host: OpenHost, path: str) -> str:
    """Return "directory" if a path is one, "" if it is a file.

    Raises:
        TpuxError: it is neither.
    """
    from tpux import sh

    found = host.run(sh("if [ -d {path} ]; then echo directory; else test -f {path}; fi", path=path).script)
    if not found.ok:
        raise TpuxError(f"{path} does not exist, or is neither a file nor a directory")
    return found.text


def _report(answers: Mapping[int, TpuxError | None], what: str) -> None:
    """Print what was copied.

    Raises:
        TpuxError: a copy failed.
    """
    failed = {index: answer for index, answer in answers.items() if isinstance(answer, TpuxError)}
    if len(failed) < len(answers):
        api.say(f"{what} worker {', '.join(str(index) for index in answers if index not in failed)}")
    if failed:
        hint = next((error.hint for error in failed.values() if error.hint), "")
        message = "\n".join(f"worker {index}: {error.message}" for index, error in failed.items())
        # 255 if the supervisor ended meanwhile: it may have been copied or not.
        raise TpuxError(message, hint=hint, exit_code=max(error.exit_code for error in failed.values()))
