"""`tpux store`: say what became of a store that was moved or copied."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpux.cli.common import Group, Yes, confirm, new_app, say
from tpux.errors import UsageError

if TYPE_CHECKING:
    from tpux.store import Store

app = new_app()


@app.callback(cls=Group)
def store() -> None:
    """Say what became of a store that was moved, copied or restored from a backup.

    tpux notices that $TPUX_HOME is another directory than the one in which the store was made, and does nothing with
    its jobs before one of these commands: two stores would use, and later delete, the same TPUs.
    """


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
    """Make this copy a separate store: the original runs the jobs.

    The copy gets another id, and the original keeps the machines. The jobs are stopped here, without any effect on
    their programs and machines; their records and logs remain.
    """
    from tpux.clock import SystemClock
    from tpux.lifecycle.copied_store import become_copy
    from tpux.store import Store
    from tpux.supervisor import client
    from tpux.supervisor.files import Files

    here = Store()
    if client.status(here) is not None:
        raise UsageError("the supervisor runs the jobs of this store", hint="tpux supervisor stop")
    if _is_in_place(here):
        confirm(f"{here.home} is where the store was made. Drop its claims to all machines nevertheless?", yes=yes)
    become_copy(here, SystemClock(), say)
    Files(here.supervisor).orphans.unlink(missing_ok=True)
    say(f"{here.home}: now a separate store with the id {here.id}; the machines of its jobs stay with the original")


def _is_in_place(here: Store) -> bool:
    from tpux.store import identity

    return not identity.misplaced(here.home)
