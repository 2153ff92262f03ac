"""Logins at the emulator with TLS and a token, for calls and execs, and the commands of docs/gke.md for a cluster."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from tpux import Job, JsonValue, Worker
from tpux_emulator.emulator import Emulator
from tpux_gke.client import Client
from tpux_gke.cluster import find, stored
from tpux_gke.contract_fixture import start_pod
from tpux_gke.host import GkeHost
from tpux_gke.section import GkeTpuSection

pytestmark = [pytest.mark.system, pytest.mark.timeout(120)]
PAGE = Path(__file__).parents[3] / "docs/gke.md"


def tpu_of(kubeconfig: Path) -> GkeTpuSection:
    """Return a section `tpu` for a kubeconfig."""
    return GkeTpuSection.model_validate({"accelerator": "v6e-8", "image": "x", "kubeconfig": str(kubeconfig)})


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    """Start a cluster that wants a token."""
    with Emulator(tmp_path_factory.mktemp("emulator"), workers=False, kubernetes=True, tls=True) as started:
        yield started


@pytest.fixture(scope="module")
def pod(emulator: Emulator) -> Worker:
    """Start a pod."""
    return start_pod(Client(find(tpu_of(emulator.home.kubeconfig))), "login")


@pytest.mark.parametrize("kind", ["token", "tokenFile", "exec"])
def test_login(emulator: Emulator, pod: Worker, tmp_path: Path, kind: str) -> None:
    """A token in the kubeconfig, a file, or what a program prints; each is read again once it has expired."""
    token = emulator.home.kubernetes / "token"
    program, path = tmp_path / "get-token", tmp_path / "config"
    program.write_text(f'#!/bin/sh\nprintf \'{{"status": {{"token": "%s"}}}}\' "$(cat {token})"\n')
    program.chmod(0o755)

    def write() -> None:
        users: dict[str, JsonValue] = {
            "token": {"token": token.read_text().strip()},
            "tokenFile": {"tokenFile": str(token)},
            "exec": {"exec": {"command": "./get-token", "apiVersion": "client.authentication.k8s.io/v1"}},
        }
        config = json.loads(emulator.home.kubeconfig.read_text())
        config["users"][0]["user"] = users[kind]
        path.write_text(json.dumps(config))

    write()
    resolved = find(tpu_of(path)).to_json()
    assert token.read_text().strip() not in json.dumps(resolved)
    client, job = Client(stored(resolved)), cast("Job", SimpleNamespace(resolved={"gke": resolved}))
    for _ in range(2):
        assert client.items(client.namespaced("api/v1", "pods"))
        host = GkeHost(pod, job)
        assert host.run("echo one").text == "one"
        host.close()
        emulator.kubernetes_fault("expire-token")
        write()


def test_commands_of_the_page(emulator: Emulator, pod: Worker, kubectl: str) -> None:
    """The real kubectl accepts each."""
    commands = {*re.findall(r"`kubectl ([^`]+)`", PAGE.read_text())}
    assert {"get jobsets", "get localqueues", "api-versions", "get jobsets,pods -l tpux-job=JOB"} <= commands
    environment = {"KUBECONFIG": str(emulator.home.kubeconfig), "HOME": str(emulator.home.path)}
    for command in commands:
        words = [kubectl, *command.replace("JOB", "000001").split()]
        done = subprocess.run(words, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, (command, done.stderr)
