"""`tpux rules`: show which action follows which failure."""

from __future__ import annotations

import inspect

from tpux.cli.common import Json, echo, emit, new_app
from tpux.errors import TpuxError
from tpux.tables import print_paragraph, print_table

app = new_app()

ACTION_WIDTH = 11
"""The width to which actions are wrapped on a narrow terminal: that of `then resume`."""


@app.command(epilog="Example: tpux rules --json")
def rules(json: Json = False) -> None:
    """Show, for each rule, the action that follows each kind of failure, and the number of restarts.

    The rules of plugins are listed with the first sentence of their description; what they answer depends on them.
    """
    from tpux.lifecycle.policy import BUDGETS, REAPPLY_CEILING, RULES
    from tpux.model.failures import FAILURE_KINDS

    budgets = {kind: BUDGETS.get(kind, 0) for kind in FAILURE_KINDS}
    plugins = _rules_of_plugins()
    if json:
        table = {rule: {kind: str(action) for kind, action in actions.items()} for rule, actions in RULES.items()}
        ceiling = {"plugin_restarts_on_new_machines": REAPPLY_CEILING}
        emit({"rules": table, "restarts": budgets, "plugins": plugins, **ceiling})
        return
    print_paragraph("What is done after each kind of failure, by rule, and how many restarts in a row are allowed:")
    columns = {rule: [str(actions[kind]) for kind in budgets] for rule, actions in RULES.items()}
    restarts = ["no limit" if limit is None else str(limit) for limit in budgets.values()]
    print_table(
        {"failure": [*budgets], **columns, "restarts": restarts},
        always=columns,
        drop=["pass"],
        wrap=dict.fromkeys(columns, ACTION_WIDTH),
    )
    echo("")
    print_paragraph(
        "The default rule is `pre` for spot and preemptible machines, else `pass`, by which every failure ends the job;"
        " job.rule changes it."
    )
    print_paragraph(
        "job.max_restarts.<kind> sets the last column, and allows restarts after a kind that otherwise passes."
        " With job.loop the job is resumed after every kind, without a limit, once its program has run."
    )
    if plugins:
        echo("\nRules of plugins (job.rule: NAME):")
        cells = {
            "rule": [row["rule"] for row in plugins],
            "dist": [f"{row['dist']} {row['version']}" for row in plugins],
            "description": [row["description"] for row in plugins],
        }
        print_table(cells, wrap={"description": 20})
        print_paragraph(
            "What they answer is done, after the same backoff: at most"
            f" {REAPPLY_CEILING} restarts in a row on new machines, or job.max_restarts.<kind> of any."
        )


def _rules_of_plugins() -> list[dict[str, str]]:
    """Return the installed plugins that can be the rule; one that is broken is left out (`tpux plugins list`)."""
    from tpux.plugin import spec
    from tpux.plugin.manager import Plugins

    plugins, rows = Plugins().with_own_files(), []
    for name in plugins.names():
        try:
            if not plugins.implements(name, spec.on_preempt):
                continue
            found = plugins.status(name)
            hook = getattr(plugins.load(name), spec.on_preempt.__name__, None)
        except TpuxError:
            continue
        description = (inspect.getdoc(hook) or "").partition("\n")[0]
        rows.append({"rule": name, "dist": found.dist, "version": found.version, "description": description})
    return rows
