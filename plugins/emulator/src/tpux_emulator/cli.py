"""`tpux emulator`."""
from __future__ import annotations
import typer
from pathlib import Path
app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False, no_args_is_help=True)
@app.command()
def start(port: int = 9470, home: Path = Path("/tmp/emu1")) -> None:
    from tpux_emulator.paths import Home
    from tpux_emulator.server import Options, run
    run(Home(home), Options(port=port))
@app.command()
def stop() -> None:
    pass
