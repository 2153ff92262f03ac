"""`tpux tpu`: TPUs by their names, whether they are queued or made."""

from __future__ import annotations

import typer

from tpux_gcp.cli import catalogue, create, manage, orphans, show

app = typer.Typer(
    name="tpu",
    help="TPUs by their names, whether they are queued or made.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
    no_args_is_help=True,
)
for _part in (create, show, manage, catalogue, orphans):
    _part.register(app)
