"""Commands that inject faults into nodes, workers and queued resources."""

from __future__ import annotations

from typing import Annotated

import typer

from tpux_emulator.cli.common import Commands, For, HomeOption, add_commands, client_at, duration, optional_duration

Node = Annotated[str, typer.Argument(help="The node: its id, its full name, or the tpu.name of a job.")]
Queued = Annotated[str, typer.Argument(help="The queued resource: its id, its full name, or the tpu.name of a job.")]
After = Annotated[str, typer.Option(help="Time until the notice, such as 30s or 5m.")]
Notice = Annotated[
    str, typer.Option(help="Notice period: the workers get a SIGTERM, and the metadata server reports it.")
]
Workers = Annotated[
    list[int] | None, typer.Option("--worker", help="A worker's number; may be repeated. Default: all.")
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    examples: Commands = {
        "preempt my-tpu --after 30s --notice 10s": preempt,
        "terminate my-tpu": terminate,
        "maintenance my-tpu --notice 10m": maintenance,
        "symptom my-tpu OUT_OF_MEMORY": symptom,
        "cut my-tpu --worker 1 --for 2m": cut,
        "restore my-tpu": restore,
        "freeze my-tpu --for 5m": freeze,
        "unfreeze my-tpu": unfreeze,
        "suspend my-tpu": suspend,
        "rotate-host-key my-tpu --worker 0": rotate_host_key,
        "reboot my-tpu --worker 0": reboot,
        "fake-state my-tpu REPAIRING": fake_state,
        "fail-queued my-tpu --code 8": fail_queued,
        "forget-queued my-tpu --unlink": forget_queued,
    }
    add_commands(app, examples)


def preempt(node: Node, after: After = "0s", notice: Notice = "0s", home: HomeOption = None) -> None:
    """Preempt a node: its workers and disks are deleted. Its state becomes PREEMPTED."""
    client_at(home).preempt(node, after=duration(after), notice=duration(notice))


def terminate(node: Node, after: After = "0s", notice: Notice = "0s", home: HomeOption = None) -> None:
    """Terminate a node for maintenance. Its state becomes TERMINATED."""
    client_at(home).terminate(node, after=duration(after), notice=duration(notice))


def maintenance(node: Node, after: After = "0s", notice: Notice = "0s", home: HomeOption = None) -> None:
    """Announce a maintenance of a node.

    The API and the metadata server show it (upcomingMaintenance), and the workers get no signal. It begins at the end
    of the notice period.
    """
    client_at(home).maintenance(node, after=duration(after), notice=duration(notice))


def symptom(
    node: Node,
    kind: Annotated[str, typer.Argument(metavar="SYMPTOM", help="Its type.")] = "OUT_OF_MEMORY",
    home: HomeOption = None,
) -> None:
    """Let the API report a symptom of a node."""
    client_at(home).symptom(node, kind)


def cut(
    node: Node,
    worker: Workers = None,
    how: Annotated[str, typer.Option(help="hang: no answer; refuse: the port is closed.")] = "hang",
    lasting: For = None,
    home: HomeOption = None,
) -> None:
    """Cut workers from the network. Their programs keep running."""
    client_at(home).cut(node, *(worker or []), how=how, lasting=optional_duration(lasting))


def restore(node: Node, worker: Workers = None, home: HomeOption = None) -> None:
    """Restore the network of workers."""
    client_at(home).restore(node, *(worker or []))


def rotate_host_key(
    node: Node,
    worker: Workers = None,
    unpublished: Annotated[
        bool, typer.Option("--unpublished", help="The API still shows the old keys, as if somebody intercepted logins.")
    ] = False,
    home: HomeOption = None,
) -> None:
    """Replace the host keys of workers, as a rebuild does."""
    client_at(home).rotate_host_key(node, *(worker or []), published=not unpublished)


def reboot(node: Node, worker: Workers = None, home: HomeOption = None) -> None:
    """Restart workers: processes end, disks stay."""
    client_at(home).reboot(node, *(worker or []))


def fake_state(
    node: Node,
    state: Annotated[str | None, typer.Argument(help="The state to show. Default: the real one.")] = None,
    lasting: For = None,
    home: HomeOption = None,
) -> None:
    """Show another state than the node's."""
    client_at(home).fake_state(node, state, lasting=optional_duration(lasting))


def freeze(node: Node, lasting: For = None, home: HomeOption = None) -> None:
    """Freeze a node in its current or next transient state. An example is DELETING."""
    client_at(home).freeze(node, lasting=optional_duration(lasting))


def unfreeze(node: Node, home: HomeOption = None) -> None:
    """Let a frozen node continue."""
    client_at(home).unfreeze(node)


def suspend(queued: Queued, home: HomeOption = None) -> None:
    """Suspend a queued resource: its nodes are deleted."""
    client_at(home).suspend(queued)


def fail_queued(
    queued: Queued,
    code: Annotated[int, typer.Option(help="The error's google.rpc.Code.", min=1, max=16)] = 13,
    message: Annotated[str, typer.Option(help="The error's message.")] = "an internal error has occurred",
    home: HomeOption = None,
) -> None:
    """Let a queued resource fail."""
    client_at(home).fail(queued, code=code, message=message)


def forget_queued(
    queued: Queued,
    unlink: Annotated[bool, typer.Option("--unlink", help="The nodes no longer name it either.")] = False,
    home: HomeOption = None,
) -> None:
    """Delete a queued resource while its nodes remain."""
    client_at(home).forget(queued, linked=not unlink)
