"""`tpux rules`: show which action follows which failure."""

from __future__ import annotations

import typer

from tpux.cli.common import Json, emit, new_app

app = new_app()


@app.command(epilog="Example: tpux rules --json")
def rules(json: Json = False) -> None:
    """Show, for each rule, the action that follows each kind of failure, and the number of restarts."""
    from tpux.lifecycle.policy import BUDGETS, RULES
    from tpux.plugin.failures import FAILURE_KINDS

    budgets = {kind: BUDGETS.get(kind, 0) for kind in FAILURE_KINDS}
    if json:
        table = {rule: {kind: str(action) for kind, action in actions.items()} for rule, actions in RULES.items()}
        emit({"rules": table, "restarts": budgets})
        return
    from tabulate import tabulate

    rows = [
        [kind, *(str(actions[kind]) for actions in RULES.values()), "no limit" if limit is None else str(limit)]
        for kind, limit in budgets.items()
    ]
    headers = ["FAILURE", *(f"rule: {rule}" for rule in RULES), "RESTARTS IN A ROW"]
    typer.echo(tabulate(rows, headers=headers, tablefmt="plain", disable_numparse=True))
    typer.echo("\nThe default rule is `pre` for spot and preemptible machines, else `pass`; job.rule changes it.")
    typer.echo("job.max_restarts.<kind> sets the last column, and allows restarts after a kind that otherwise passes.")
