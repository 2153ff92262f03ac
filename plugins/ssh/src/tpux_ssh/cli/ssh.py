"""`tpux ssh`: log in to a worker of a job with the system's OpenSSH."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from tpux import UsageError
from tpux.api import new_app

if TYPE_CHECKING:
    from tpux import Worker
    from tpux.api import JobConnection

app = new_app()


@app.command(epilog="Example: tpux ssh 12 --worker 3\n\nExample: tpux ssh 12 -- -L 6006:localhost:6006")
def ssh(
    job: Annotated[str, typer.Argument(metavar="JOB", help="The job's id or name, or a TPU's name.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="-- ...", help="Options for ssh, or a command to run on the worker.")
    ] = None,
    worker: Annotated[int, typer.Option(min=0, help="Number of the worker.")] = 0,
    forget_host_key: Annotated[
        bool,
        typer.Option("--forget-host-key", help="Trust the worker's current host key, after it has changed on purpose."),
    ] = False,
) -> None:
    """Log in to a worker of a job, or of a TPU that no job holds."""
    from tpux import api
    from tpux_ssh.openssh import OpenSsh

    held = api.workers(job, or_machines=True)
    openssh, target = OpenSsh(held), held.worker(worker)
    if forget_host_key and not openssh.forget_key(target):
        target = _with_current_key(held, target)
    for error in openssh.learn_keys([target]).values():
        raise error
    command = ["ssh", "-F", str(openssh.config_file([target])), openssh.alias(target), *(arguments or [])]
    try:
        os.execvp("ssh", command)  # noqa: S606  (ssh inherits the terminal, receives the signals and sets the exit code)
    except FileNotFoundError as error:
        raise UsageError("ssh: command not found", hint="install openssh-client") from error


def _with_current_key(held: JobConnection, worker: Worker) -> Worker:
    """Return a worker with the host key that its allocator provides now.

    Raises:
        UsageError: it provides none, or the same as when the machines were allocated.
    """
    current = held.current_worker(worker)
    if current is None or not current.details.get("host_keys"):
        message = f"worker {worker.index} has no stored host key to forget"
        raise UsageError(message, hint="no key has been learned yet: log in without --forget-host-key")
    if current == worker:
        message = f"the host key of worker {worker.index} is from the allocator, which still provides the same key"
        raise UsageError(message, hint="if the worker presents another one, it is a different machine")
    return current
