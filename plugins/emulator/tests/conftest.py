"""Fixtures of the emulator's tests: emulators whose exchanges are checked against the discovery document."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tpux_emulator.emulator import Emulator

# In importlib mode, pytest does not make the tests' own modules importable.
sys.path.insert(0, str(Path(__file__).parent / "support"))

from emulator_schemas import check_exchanges
from emulator_support import QUICK, missing


@pytest.fixture(scope="session")
def sshd() -> None:
    """Skip if workers cannot run here."""
    if not shutil.which("sshd", path="/usr/sbin:/usr/bin:/sbin"):
        missing("no sshd on this machine")


@pytest.fixture(scope="session")
def root(sshd: None) -> None:
    """Skip if workers with their own root file system cannot run here."""
    if os.geteuid() != 0:
        missing("workers with their own root need root", installable=False)


@pytest.fixture(scope="session")
def api_cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    """An emulator without workers, shared by all tests of the API; each test uses its own resource names."""
    with Emulator(tmp_path_factory.mktemp("api"), workers=False, delays=QUICK) as cloud:
        yield cloud
        check_exchanges(cloud.requests)


@pytest.fixture(scope="session")
def _ssh_cloud(sshd: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    with Emulator(tmp_path_factory.mktemp("ssh"), delays=QUICK) as cloud:
        yield cloud
        check_exchanges(cloud.requests)


@pytest.fixture
def ssh_cloud(_ssh_cloud: Emulator) -> Iterator[Emulator]:
    """An emulator with real workers, shared by tests; faults are cleared after each test."""
    yield _ssh_cloud
    _ssh_cloud.clear()


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Emulator]]:
    """Return a function that starts an emulator for one test."""
    running: list[Emulator] = []

    def start(**options: object) -> Emulator:
        options = {"home": tmp_path / f"emulator{len(running)}", "workers": False, "delays": QUICK, **options}
        cloud = Emulator(**options)  # type: ignore[arg-type]
        running.append(cloud.__enter__())
        return cloud

    yield start
    for cloud in running:
        check_exchanges(cloud.requests)
        cloud.__exit__(None, None, None)


@pytest.fixture(scope="session")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the private key of an SSH key pair."""
    path = tmp_path_factory.mktemp("key") / "id_ed25519"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "me@here", "-f", path], check=True)
    return path
