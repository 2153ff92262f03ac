"""`tpux ssh`: log in to a worker of a job, with the system's OpenSSH."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from tpux import UsageError, new_app

app = new_app()


@app.command(epilog="Example: tpux ssh 12 --worker 3\n\nExample: tpux ssh 12 -- -L 6006:localhost:6006")
def ssh(
    job: Annotated[str, typer.Argument(metavar="JOB", help="The job's id.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="-- ...", help="Options of ssh, or a command to run there.")
    ] = None,
    worker: Annotated[int, typer.Option(min=0, help="The worker's number.")] = 0,
    forget_host_key: Annotated[
        bool, typer.Option("--forget-host-key", help="Trust the key that it shows now: it was made anew on purpose.")
    ] = False,
) -> None:
    """Log in to a worker of a job."""
    from tpux import held_machines
    from tpux_ssh.openssh import OpenSsh

    held = held_machines(job)
    openssh, one = OpenSsh(held), held.worker(worker)
    if forget_host_key and not openssh.forget(one):
        raise UsageError(
            f"worker {worker} has no host key that could be forgotten",
            hint="none was pinned, or the allocator says which key it has",
        )
    for error in openssh.learn_keys([one]).values():
        raise error
    command = ["ssh", "-F", str(openssh.config_file([one])), openssh.alias(one), *(arguments or [])]
    try:
        os.execvp("ssh", command)  # noqa: S606  (becomes ssh: its terminal, its signals, its exit code)
    except FileNotFoundError as error:
        raise UsageError("there is no program ssh here", hint="install openssh-client") from error
