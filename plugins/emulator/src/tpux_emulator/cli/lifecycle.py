"""The commands start, stop, reset, status and env."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Annotated

import typer

from tpux_emulator.cli.common import Commands, HomeOption, add_commands, client_at, home_at

_PORT = 9470


def register(app: typer.Typer) -> None:
    """Add the commands."""
    examples: Commands = {"start --detach": start, "stop": stop, "status --json": status, "reset": reset, "env": env}
    add_commands(app, examples)


def start(
    port: Annotated[
        int, typer.Option(help="The API's port on 127.0.0.1; 0 selects a free one.", min=0, max=65535)
    ] = _PORT,
    detach: Annotated[bool, typer.Option("--detach", help="Run in the background.")] = False,
    ssh_port: Annotated[
        int | None,
        typer.Option(help="The workers' SSH port. Default: 22 if it can be bound, else 2222.", min=1, max=65535),
    ] = None,
    workers: Annotated[bool, typer.Option(help="Run real workers, or only the API.")] = True,
    scenario: Annotated[Path | None, typer.Option(help="A YAML file with settings and faults to start with.")] = None,
    kubernetes: Annotated[
        int | None,
        typer.Option(
            help="Serve a Kubernetes API too, on this port; 0 selects a free one. It needs `websockets`.",
            min=0,
            max=65535,
        ),
    ] = None,
    tls: Annotated[bool, typer.Option("--tls", help="The Kubernetes API has TLS, with a CA of its own.")] = False,
    pod_roots: Annotated[
        bool, typer.Option("--pod-roots", help="Its pods have a root file system each; needs root.")
    ] = False,
    home: HomeOption = None,
) -> None:
    """Start an emulator. Its cloud is in the state in which it was stopped."""
    directory = home_at(home)
    if detach:
        from tpux_emulator.process import start_detached

        arguments = ["--port", str(port), "--workers" if workers else "--no-workers"]
        arguments += ["--ssh-port", str(ssh_port)] if ssh_port else []
        arguments += ["--scenario", str(scenario.absolute())] if scenario else []
        arguments += ["--kubernetes", str(kubernetes)] if kubernetes is not None else []
        arguments += [*(["--tls"] if tls else []), *(["--pod-roots"] if pod_roots else [])]
        info = start_detached(directory, arguments)
        typer.echo(f"The emulator listens on {info['url']} (process {info['pid']}, log {directory.log}).")
        if info["workers"]:
            typer.echo(f"Its workers listen on SSH port {info['ssh_port']}; tpux finds it by itself.")
        if kubernetes is not None:
            typer.echo(f"Its Kubernetes API is {info['kubernetes']}; the kubeconfig is {directory.kubeconfig}.")
        typer.echo('eval "$(tpux emulator env)" points gcloud and tpux at it.')
        return
    from tpux_emulator.cloud.scenario import load_scenario
    from tpux_emulator.server import Options, run

    loaded = load_scenario(scenario) if scenario else None
    options = Options(port=port, workers=workers, ssh_port=ssh_port, scenario=loaded, kubernetes=kubernetes,
                      tls=tls, pod_roots=pod_roots)  # fmt: skip
    run(directory, options, lambda url: typer.echo(f"The emulator listens on {url}. Stop it with Ctrl-C."))


def stop(home: HomeOption = None) -> None:
    """Stop the emulator and its workers. The next start restores the nodes."""
    from tpux_emulator.client import find_running
    from tpux_emulator.process import stop_and_wait
    from tpux_emulator.server import kill_leftover_workers

    directory = home_at(home)
    if find_running(directory) is None and kill_leftover_workers(directory):
        typer.echo("The emulator was not running. Stopped the workers that it had left running.")
        return
    stop_and_wait(directory)
    typer.echo("The emulator is stopped.")


def reset(home: HomeOption = None) -> None:
    """Stop the emulator if it runs, and delete its state."""
    from tpux_emulator.client import find_running
    from tpux_emulator.process import stop_and_wait
    from tpux_emulator.server import delete_state

    directory = home_at(home)
    if find_running(directory) is not None:
        stop_and_wait(directory)
    delete_state(directory)
    typer.echo("The emulator's state is deleted.")


def status(
    as_json: Annotated[bool, typer.Option("--json", help="Print the complete status as JSON.")] = False,
    home: HomeOption = None,
) -> None:
    """Show its nodes and queued resources, and active faults."""
    current = client_at(home).status()
    if as_json:
        typer.echo(json.dumps(current, indent=2))
        return
    from tpux_emulator.cli.status import print_status

    print_status(current)


def env(
    project: Annotated[str, typer.Option(help="The project; any name is accepted.")] = "emulated",
    zone: Annotated[str, typer.Option(help="The default zone.")] = "us-central2-b",
    home: HomeOption = None,
) -> None:
    """Print shell commands that make clients use it."""
    from tpux_emulator.client import find_running

    for key, value in client_at(home).environment(project=project, zone=zone).items():
        typer.echo(f"export {key}={shlex.quote(value)}")
    if "kubernetes" in (find_running(directory := home_at(home)) or {}):
        typer.echo(f"export KUBECONFIG={shlex.quote(str(directory.kubeconfig))}")
