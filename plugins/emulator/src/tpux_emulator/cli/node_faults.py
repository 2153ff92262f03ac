"""Commands that break nodes, workers and queued resources."""

from __future__ import annotations

from typing import Annotated

import typer

from tpux_emulator.cli.common import For, HomeOption, client_at, duration, optional_duration

Node = Annotated[str, typer.Argument(help="The node's id, or its full name.")]
Queued = Annotated[str, typer.Argument(help="The queued resource's id, or its full name.")]
After = Annotated[str, typer.Option(help="When: 30s, 5m from now.")]
Notice = Annotated[str, typer.Option(help="How long before the workers are told: metadata and SIGTERM.")]
Workers = Annotated[list[int] | None, typer.Option("--worker", help="Which worker; all without it. May be repeated.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    for command in (preempt, terminate, cut, restore, suspend):
        app.command()(command)
    app.command("rekey")(rotate_host_key)
    app.command("lie")(fake_state)
    app.command("stick")(freeze)
    app.command("unstick")(unfreeze)
    app.command("fail-queued")(fail_queued)


def preempt(node: Node, after: After = "0s", notice: Notice = "0s", home: HomeOption = None) -> None:
    """Preempt a node: its workers are gone with everything on them, its state is PREEMPTED."""
    client_at(home).preempt(node, after=duration(after), notice=duration(notice))


def terminate(node: Node, after: After = "0s", notice: Notice = "0s", home: HomeOption = None) -> None:
    """Take a node for maintenance: its state is TERMINATED."""
    client_at(home).terminate(node, after=duration(after), notice=duration(notice))


def cut(
    node: Node,
    worker: Workers = None,
    how: Annotated[str, typer.Option(help="hang: nothing is answered; refuse: the port is closed.")] = "hang",
    lasting: For = None,
    home: HomeOption = None,
) -> None:
    """Cut workers from the network; what runs on them goes on."""
    client_at(home).cut(node, *(worker or []), how=how, lasting=optional_duration(lasting))


def restore(node: Node, worker: Workers = None, home: HomeOption = None) -> None:
    """End a cut."""
    client_at(home).restore(node, *(worker or []))


def rotate_host_key(node: Node, worker: Workers = None, home: HomeOption = None) -> None:
    """Give workers other host keys, as machines that were rebuilt have."""
    client_at(home).rekey(node, *(worker or []))


def fake_state(
    node: Node,
    state: Annotated[str | None, typer.Argument(help="The state to show; the truth without one.")] = None,
    lasting: For = None,
    home: HomeOption = None,
) -> None:
    """Show a state that is not the node's."""
    client_at(home).lie(node, state, lasting=optional_duration(lasting))


def freeze(node: Node, lasting: For = None, home: HomeOption = None) -> None:
    """Keep a node in the state it is in or comes to next, such as DELETING."""
    client_at(home).stick(node, lasting=optional_duration(lasting))


def unfreeze(node: Node, home: HomeOption = None) -> None:
    """Let a stuck node go on."""
    client_at(home).unstick(node)


def suspend(queued: Queued, home: HomeOption = None) -> None:
    """Suspend a queued resource: its nodes are deleted."""
    client_at(home).suspend(queued)


def fail_queued(
    queued: Queued,
    code: Annotated[int, typer.Option(help="A google.rpc code.", min=1, max=16)] = 13,
    message: Annotated[str, typer.Option(help="The error's sentence.")] = "an internal error has occurred",
    home: HomeOption = None,
) -> None:
    """Let a queued resource fail."""
    client_at(home).fail(queued, code=code, message=message)
