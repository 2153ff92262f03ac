"""`tpux ssh-config` (Workers): print OpenSSH Host blocks for ssh, rsync, scp and editors."""

from __future__ import annotations

from typing import Annotated

import typer

from tpux.api import new_app

app = new_app()


@app.command(
    "ssh-config", epilog="Example: tpux ssh-config 12 > ~/.ssh/tpux-12 && rsync -e 'ssh -F ~/.ssh/tpux-12' ..."
)
def ssh_config(
    job: Annotated[str, typer.Argument(metavar="JOB", help="The job's id or name, or a TPU's name.")],
) -> None:
    """Print a Host block for each worker of a job: tpux-JOB-0, tpux-JOB-1, ...

    With `Include ~/.ssh/tpux-*` at the top of ~/.ssh/config, every program that uses OpenSSH knows these names.
    """
    from tpux import api
    from tpux_ssh.openssh import OpenSsh

    held = api.workers(job, or_machines=True)
    openssh, workers = OpenSsh(held), held.allocation.workers
    for index, error in openssh.learn_keys(workers).items():
        typer.echo(f"tpux: no host key for worker {index} yet: {error}", err=True)
    typer.echo(openssh.host_blocks(workers), nl=False)
