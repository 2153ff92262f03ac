"""`tpux emulator`: start one, stop it, look at it, break it."""

from __future__ import annotations

import typer

from tpux_emulator.cli import faults, lifecycle, requests

app = typer.Typer(
    name="emulator",
    help="A Cloud TPU API on this machine, with real SSH servers as its workers.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
    no_args_is_help=True,
)
for module in (lifecycle, faults, requests):
    module.register(app)
