"""`tpux emulator` (Administration): start, stop and inspect an emulator, and inject faults."""

from __future__ import annotations

import typer

from tpux_emulator.cli import cluster_faults, lifecycle, node_faults, request_faults

app = typer.Typer(
    name="emulator",
    help="A Cloud TPU API on this machine, with real SSH servers as its workers.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
    no_args_is_help=True,
)
for module in (lifecycle, node_faults, request_faults, cluster_faults):
    module.register(app)
