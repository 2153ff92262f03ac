"""Execs: all bytes and exit codes, servers of v4 only, connections that are cut, tokens that expire."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from tpux import HostUnreachableError, Job, Worker
from tpux_emulator.emulator import Emulator
from tpux_gke.client import Client, client_of
from tpux_gke.cluster import Cluster, find
from tpux_gke.contract_fixture import start_pod
from tpux_gke.host import GkeHost
from tpux_gke.section import GkeTpuSection

pytestmark = [pytest.mark.system, pytest.mark.timeout(120)]
SIZE = 20 * 1024 * 1024


def cluster_of(emulator: Emulator) -> Cluster:
    """Return the cluster of an emulator, as `resolve` finds it."""
    given = {"accelerator": "v6e-8", "image": "x", "kubeconfig": str(emulator.home.kubeconfig)}
    return find(GkeTpuSection.model_validate(given))


def host_of(emulator: Emulator, worker: Worker) -> GkeHost:
    """Return a connection to a pod."""
    job = SimpleNamespace(resolved={"gke": cluster_of(emulator).to_json()})
    return GkeHost(worker, cast("Job", job))


@pytest.fixture(scope="module", params=["http", "tls"])
def emulator(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    """Start a cluster, without and with TLS and a token."""
    home = tmp_path_factory.mktemp("emulator")
    with Emulator(home, workers=False, kubernetes=True, tls=request.param == "tls") as started:
        yield started


@pytest.fixture(scope="module")
def pod(emulator: Emulator) -> Worker:
    """Start a pod."""
    return start_pod(Client(cluster_of(emulator)), "transport")


@pytest.fixture(params=["v5.channel.k8s.io", "v4.channel.k8s.io"])
def host(request: pytest.FixtureRequest, emulator: Emulator, pod: Worker) -> Iterator[GkeHost]:
    """Return a connection, with each version of the protocol."""
    emulator.change_kubernetes(exec_protocols=[request.param])
    opened = host_of(emulator, pod)
    yield opened
    opened.close()
    emulator.change_kubernetes(exec_protocols=["v5.channel.k8s.io", "v4.channel.k8s.io"])


def test_all_bytes_each_way(host: GkeHost, tmp_path: Path) -> None:
    """Large input and output arrive as they are."""
    data = os.urandom(SIZE)
    host.put(data, "large/file")
    digest = hashlib.sha256(data).hexdigest()
    assert host.run("sha256sum large/file").text.split()[0] == digest
    host.get("large/file", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == data


@pytest.mark.parametrize("code", [0, 1, 137])
def test_exit_codes(host: GkeHost, code: int) -> None:
    """The exit code is the script's, also of a signal's."""
    assert host.run(f"echo said; exit {code}").code == code
    assert host.run("kill -9 $$").code == 137


def test_connection_that_is_cut(host: GkeHost, emulator: Emulator) -> None:
    """A call in the middle fails, what it has started goes on, and the next call opens another connection."""
    said: list[bytes] = []

    def cut(piece: bytes) -> None:
        said.append(piece)
        emulator.kubernetes_fault("cut", pod="transport")

    script = "setsid --fork sh -c 'sleep 1; echo done >went-on' </dev/null >/dev/null 2>&1; echo started; sleep 30"
    with pytest.raises(HostUnreachableError, match="pod transport"):
        host.follow(script, cut)
    assert said == [b"started\n"]
    assert host.run("until [ -e went-on ]; do sleep 0.1; done; cat went-on; rm went-on").text == "done"


def test_idle_connection_that_was_dropped(host: GkeHost, emulator: Emulator) -> None:
    """What is between here and the pod may drop it: the next call does not fail."""
    assert host.run("echo 1").text == "1"
    emulator.kubernetes_fault("cut", pod="transport")
    time.sleep(1)  # until it is known here: a call that was sent meanwhile has an unknown outcome, and is not repeated
    assert host.run("sleep 0.2; echo 2").text == "2"


def test_pod_that_does_not_exist(emulator: Emulator) -> None:
    """It is unreachable, never gone: only the allocator says that."""
    with pytest.raises(HostUnreachableError, match="404"):
        host_of(emulator, Worker(0, details={"pod": "nobody"})).run("true")


def test_expired_token(emulator: Emulator, pod: Worker) -> None:
    """A token that has expired is read again, for calls and for execs."""
    cluster = cluster_of(emulator)
    client = client_of(cluster.to_json())
    assert client.get("api/v1")
    if not cluster.ca:
        pytest.skip("without TLS there is no token")
    emulator.kubernetes_fault("expire-token")
    assert client.get("api/v1")
    emulator.kubernetes_fault("expire-token")
    assert host_of(emulator, pod).run("echo 1").text == "1"
