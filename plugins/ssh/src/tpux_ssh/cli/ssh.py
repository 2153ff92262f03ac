"""`tpux ssh`: log in to a worker of a job with the system's OpenSSH."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from tpux import UsageError
from tpux.api import new_app

app = new_app()


@app.command(epilog="Example: tpux ssh 12 --worker 3\n\nExample: tpux ssh 12 -- -L 6006:localhost:6006")
def ssh(
    job: Annotated[str, typer.Argument(metavar="JOB", help="The job's id.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="-- ...", help="Options for ssh, or a command to run on the worker.")
    ] = None,
    worker: Annotated[int, typer.Option(min=0, help="Number of the worker.")] = 0,
    forget_host_key: Annotated[
        bool,
        typer.Option("--forget-host-key", help="Trust the worker's current host key, after it has changed on purpose."),
    ] = False,
) -> None:
    """Log in to a worker of a job."""
    from tpux.api import connect_job
    from tpux_ssh.openssh import OpenSsh

    held = connect_job(job)
    openssh, target = OpenSsh(held), held.worker(worker)
    if forget_host_key and not openssh.forget_key(target):
        raise UsageError(
            f"worker {worker} has no stored host key to forget",
            hint="no key has been learned yet, or the allocator provides it",
        )
    for error in openssh.learn_keys([target]).values():
        raise error
    command = ["ssh", "-F", str(openssh.config_file([target])), openssh.alias(target), *(arguments or [])]
    try:
        os.execvp("ssh", command)  # noqa: S606  (ssh inherits the terminal, receives the signals and sets the exit code)
    except FileNotFoundError as error:
        raise UsageError("ssh: command not found", hint="install openssh-client") from error
