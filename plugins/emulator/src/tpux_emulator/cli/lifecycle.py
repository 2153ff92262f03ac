"""start, stop, status, reset, env."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Annotated

import typer

from tpux_emulator.cli.common import HomeOption, client_at, home_at

_PORT = 9470


def register(app: typer.Typer) -> None:
    """Add the commands."""
    for command in (start, stop, status, reset, env):
        app.command()(command)


def start(
    port: Annotated[
        int, typer.Option(help="Port of the API on 127.0.0.1; 0 takes a free one.", min=0, max=65535)
    ] = _PORT,
    detach: Annotated[bool, typer.Option("--detach", help="Run in the background.")] = False,
    ssh_port: Annotated[
        int | None,
        typer.Option(help="Where workers listen; default 22, or 2222 without the right to that.", min=1, max=65535),
    ] = None,
    workers: Annotated[bool, typer.Option(help="Whether nodes have real workers.")] = True,
    scenario: Annotated[Path | None, typer.Option(help="A YAML file of settings and faults to begin with.")] = None,
    home: HomeOption = None,
) -> None:
    """Start an emulator. Its cloud is as the last one left it."""
    where = home_at(home)
    if detach:
        from tpux_emulator.process import start_detached

        arguments = ["--port", str(port), "--workers" if workers else "--no-workers"]
        arguments += ["--ssh-port", str(ssh_port)] if ssh_port else []
        arguments += ["--scenario", str(scenario.absolute())] if scenario else []
        facts = start_detached(where, arguments)
        typer.echo(f"The emulator listens on {facts['url']} (process {facts['pid']}, log {where.log}).")
        typer.echo('eval "$(tpux emulator env)" points gcloud and tpux at it.')
        return
    from tpux_emulator.cloud.scenario import load_scenario
    from tpux_emulator.server import Options, run

    loaded = load_scenario(scenario) if scenario else None
    options = Options(port=port, workers=workers, ssh_port=ssh_port, scenario=loaded)
    run(where, options, lambda url: typer.echo(f"The emulator listens on {url}; Ctrl-C ends it."))


def stop(home: HomeOption = None) -> None:
    """Stop the emulator and all its workers. What there was is there again at the next start."""
    from tpux_emulator.client import find_running
    from tpux_emulator.process import stop_and_wait
    from tpux_emulator.server import kill_leftover_workers

    where = home_at(home)
    if find_running(where) is None and kill_leftover_workers(where):
        typer.echo("The emulator was not running; the workers that it had left have ended.")
        return
    stop_and_wait(where)
    typer.echo("The emulator has stopped.")


def reset(home: HomeOption = None) -> None:
    """Stop the emulator, if it runs, and forget its cloud."""
    from tpux_emulator.client import find_running
    from tpux_emulator.process import stop_and_wait
    from tpux_emulator.server import delete_state

    where = home_at(home)
    if find_running(where) is not None:
        stop_and_wait(where)
    delete_state(where)
    typer.echo("The emulator's cloud is empty.")


def status(
    as_json: Annotated[bool, typer.Option("--json", help="Everything, as JSON.")] = False, home: HomeOption = None
) -> None:
    """Show the emulator, its nodes and queued resources, and the faults that are set."""
    shown = client_at(home).status()
    if as_json:
        typer.echo(json.dumps(shown, indent=2))
        return
    from tpux_emulator.cli.status_text import status_text

    typer.echo(status_text(shown))


def env(
    project: Annotated[str, typer.Option(help="The project; any name will do.")] = "emulated",
    zone: Annotated[str, typer.Option(help="The default zone.")] = "us-central2-b",
    home: HomeOption = None,
) -> None:
    """Print the shell's exports that point gcloud and tpux at the emulator."""
    for key, value in client_at(home).environment(project=project, zone=zone).items():
        typer.echo(f"export {key}={shlex.quote(value)}")
