"""`tpux delete`: stop jobs, give their machines back, forget them."""

from __future__ import annotations

from tpux.cli.common import DryRun, JobsArg, OfName, OfState, Yes, chosen, confirm, new_app, say
from tpux.cli.removal import remove

app = new_app()


@app.command(epilog="Example: tpux delete 12 -y")
def delete(
    jobs: JobsArg = None,
    yes: Yes = False,
    state: OfState = None,
    name: OfName = None,
    dry_run: DryRun = False,
) -> None:
    """Stop jobs, give their machines back, and remove their records and logs.

    A record goes only once its machines are confirmed to be given back.
    """
    from tpux.store import Store

    store = Store()
    records = chosen(store, jobs or [], state=state, name=name)
    ids = ", ".join(record.directory.name for record in records)
    if not records:
        return
    if dry_run:
        say(f"would delete {ids}")
        return
    for record in records:
        record.look()  # one that cannot be read may hold machines: it is not dropped blindly
    confirm(f"Delete job {ids}, with all logs?", yes=yes)
    remove(store, records)
