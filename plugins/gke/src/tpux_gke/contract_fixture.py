"""What `tpux plugins check gke` and the tests use in place of a cluster: the emulator's Kubernetes API on loopback."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, cast

from tpux import JsonValue, TpuxError, Worker
from tpux_gke.client import Client
from tpux_gke.cluster import find
from tpux_gke.execs import CONTAINER
from tpux_gke.objects import is_true
from tpux_gke.scripts import KEEPER
from tpux_gke.section import HOME, GkeTpuSection

if TYPE_CHECKING:
    from tpux_testing import LocalFixture

_START = 30.0
_PLACE = ("cluster", "location", "project", "kubeconfig", "context", "namespace")
_SIZE = ("topology", "chips_per_host", "node_count", "slices")
_MOST_PODS = 8
"""More would be as many processes of this machine, and show nothing else."""


@contextmanager
def emulated_cluster(config: Mapping[str, object]) -> Iterator[LocalFixture]:
    """Start an emulator with a Kubernetes API, and a pod on it for the transport.

    Raises:
        ModuleNotFoundError: tpux-plugin-emulator is not installed.
    """
    from tpux_emulator.emulator import Emulator
    from tpux_testing import LocalFixture

    with (
        tempfile.TemporaryDirectory(prefix="tpux-gke-check-") as home,
        Emulator(Path(home), workers=False, kubernetes=True) as emulator,
    ):
        tpu = _emulated(cast("Mapping[str, object]", config.get("tpu") or {}))
        tpu["kubeconfig"] = str(emulator.home.kubeconfig)
        section = GkeTpuSection.model_validate(tpu)
        emulator.change_kubernetes(queue=section.queue or "tpu-queue", priorities={section.priority or "high": 1})
        emulator.change_kubernetes(schedule=0.02, start=0.02, admission=0.02, scale_up=0.05)
        client = Client(find(section))
        worker = start_pod(client, "contract")

        def existing() -> list[object]:
            status = cast("dict[str, list[object]]", emulator.kubernetes())
            return [*status["jobsets"], *status["pods"]]

        nobody = Worker(0, address="nobody", details={"pod": "nobody"})
        yield LocalFixture({**config, "tpu": tpu}, existing=existing, worker=worker, unreachable=nobody)


def _emulated(given: Mapping[str, object]) -> dict[str, object]:
    """Return a section `tpu` for the emulator: without the place of a real cluster, and not with very many pods."""
    usual = {"allocation_mode": "gke", "accelerator": "v6e-8", "image": "emulated"}
    tpu = {**usual, **{key: value for key, value in given.items() if key not in _PLACE}}
    if (GkeTpuSection.model_validate(tpu).count_workers() or 0) > _MOST_PODS:
        tpu = {key: value for key, value in tpu.items() if key not in _SIZE} | {"accelerator": usual["accelerator"]}
    return tpu


def start_pod(client: Client, name: str) -> Worker:
    """Start a pod with a keeper, of no JobSet, and wait until it is ready.

    Raises:
        TpuxError: it is not ready in time.
    """
    container: dict[str, JsonValue] = {
        "name": CONTAINER,
        "image": "emulated",
        "command": ["/bin/sh", "-c", KEEPER, "tpux-keeper"],
        "env": [{"name": "HOME", "value": HOME}],
    }
    pod: dict[str, JsonValue] = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"containers": [container], "restartPolicy": "Never"},
    }
    path = client.namespaced("api/v1", "pods")
    client.request("POST", path, body=pod)
    deadline = time.monotonic() + _START
    while not is_true(client.get(f"{path}/{name}") or {}, "Ready"):
        if time.monotonic() > deadline:
            raise TpuxError(f"pod {name} is not ready")
        time.sleep(0.05)
    return Worker(0, address=name, internal_ip="127.0.0.1", details={"pod": name})
