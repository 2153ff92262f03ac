"""`tpux store`: say what became of a store that was moved or copied; make one that several users share."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tpux.cli.common import Group, Yes, confirm, new_app, say
from tpux.errors import UsageError

if TYPE_CHECKING:
    from tpux.store import Store

app = new_app()


@app.callback(cls=Group)
def store() -> None:
    """Say what became of a store that was moved or copied, or make one for several users.

    tpux notices that $TPUX_HOME is another directory than the one in which the store was made, and does nothing with
    its jobs before one of these commands: two stores would use, and later delete, the same TPUs.
    """


@app.command(epilog="Example: sudo tpux store share /lab/tpux --group lab")
def share(
    directory: Annotated[Path, typer.Argument(metavar="DIRECTORY", help="A new directory, which the group can reach.")],
    group: Annotated[str, typer.Option(metavar="NAME", help="The group whose members share the store.")],
) -> None:
    """Make a store for the users of this machine who are in a group.

    Each of them then sets TPUX_HOME to it. They see each other's leases, holds and places in queues, and nothing else:
    each has a directory of its own in it, with jobs, secrets and a supervisor that the others cannot read.
    """
    from tpux.store import published

    path = directory.expanduser().absolute()
    published.share(path, group)
    say(f"{path} is a store for the group {group}; its members type: export TPUX_HOME={shlex.quote(str(path))}")


@app.command(epilog="Example: tpux store moved")
def moved() -> None:
    """Continue the jobs here: no other copy of this store is used."""
    from tpux.store import Store
    from tpux.supervisor import client

    here = Store()
    if _is_in_place(here):
        say(f"{here.home}: the store is where it was made; nothing to do")
        return
    here.move_here()
    client.notify(here)
    say(f"{here.home}: the store was moved; its jobs continue from here")


@app.command(epilog="Example: tpux store copied")
def copied(yes: Yes = False) -> None:
    """Make this copy a separate, empty store; the original has the jobs.

    The copy gets another id. The records of its jobs are moved into another directory, where their logs can be read;
    nothing is done with their programs and machines.
    """
    from tpux.store import Store
    from tpux.supervisor import client
    from tpux.supervisor.files import Files

    here = Store()
    if client.status(here) is not None:
        raise UsageError("the supervisor runs the jobs of this store", hint="tpux supervisor stop")
    if _is_in_place(here):
        confirm(
            f"{here.home} is where the store was made. Set the records of all its jobs aside nevertheless?", yes=yes
        )
    aside = here.set_jobs_aside()
    Files(here.supervisor).orphans.unlink(missing_ok=True)
    say(f"{here.home}: now a separate store with the id {here.id}; the records of the original's jobs are in {aside}")


def _is_in_place(here: Store) -> bool:
    from tpux.store import identity

    return not identity.misplaced(here.home)
