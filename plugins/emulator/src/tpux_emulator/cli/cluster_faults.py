"""Commands that inject faults into the cluster of the Kubernetes API, and change its settings."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from tpux_emulator.cli.common import Commands, HomeOption, add_commands, client_at, optional_duration

Pod = Annotated[str, typer.Argument(help="The pod: its name, or how it begins.")]
_NODE_FAULTS = ("preempt", "maintenance", "host-error", "evict", "oom", "cut")


def register(app: typer.Typer) -> None:
    """Add the commands."""
    examples: Commands = {
        "pod preempt t-ab12-slice-0-1 --notice 15s": pod,
        "kueue-evict t-ab12 --reason Preempted": kueue_evict,
        "expire-token": expire_token,
        "cluster quota=64 images='[\"gcr.io/*\"]'": cluster,
    }
    add_commands(app, examples)


def pod(
    fault: Annotated[str, typer.Argument(help=f"What happens: {', '.join(_NODE_FAULTS)}.")],
    name: Pod,
    notice: Annotated[
        str | None, typer.Option(help="Time between SIGTERM (preempt) or the taint (maintenance) and the end.")
    ] = None,
    home: HomeOption = None,
) -> None:
    """Inject a fault into a Kubernetes pod or its node.

    preempt: the spot node goes, with 15 s of notice. maintenance: the node is tainted, and goes after --notice.
    host-error: it goes without SIGTERM. evict: the kubelet evicts the pod. oom: its container is killed for its memory.
    cut: the connections of exec are aborted; commands keep running.
    """
    if fault not in _NODE_FAULTS:
        raise typer.BadParameter(f"{fault!r} is not one of {', '.join(_NODE_FAULTS)}")
    done = client_at(home).kubernetes_fault(fault, pod=name, notice=optional_duration(notice))
    typer.echo(" ".join(f"{key}={value}" for key, value in done.items()))


def kueue_evict(
    jobset: Annotated[str, typer.Argument(help="The JobSet.")],
    reason: Annotated[
        str, typer.Option(help="Why: Preempted, PodsReadyTimeout, ClusterQueueStopped ...")
    ] = "Preempted",
    requeue: Annotated[str, typer.Option(help="After which time it may be admitted again.")] = "0s",
    home: HomeOption = None,
) -> None:
    """Let Kueue evict a JobSet.

    It is suspended, and waits again.
    """
    client_at(home).kubernetes_fault("kueue-evict", jobset=jobset, reason=reason, requeue=optional_duration(requeue))


def expire_token(home: HomeOption = None) -> None:
    """Let the token of the Kubernetes API expire.

    The token file of the kubeconfig has a new one.
    """
    client_at(home).kubernetes_fault("expire-token")


def cluster(
    settings: Annotated[list[str], typer.Argument(help="NAME=VALUE ..., values as JSON or plain words.")],
    home: HomeOption = None,
) -> None:
    """Change settings of the Kubernetes API.

    They are node_pools, images, denied, queue, quota, queue_stopped and so on.
    """
    change = {}
    for each in settings:
        key, found, value = each.partition("=")
        if not found:
            raise typer.BadParameter(f"{each!r} is not NAME=VALUE")
        try:
            change[key] = json.loads(value)
        except ValueError:
            change[key] = value
    client_at(home).change_kubernetes(**change)
