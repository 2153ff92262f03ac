"""What the emulator's tests share: emulators, real clients, and a look at every message that went by."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tpux_emulator.emulator import Emulator

# pytest's importlib mode leaves the tests' own modules to us.
sys.path.insert(0, str(Path(__file__).parent / "support"))

from emulator_schemas import check_exchanges
from emulator_support import QUICK, missing


@pytest.fixture(scope="session")
def sshd() -> None:
    """Real workers can be had."""
    if not shutil.which("sshd", path="/usr/sbin:/usr/bin:/sbin"):
        missing("no sshd on this machine")


@pytest.fixture(scope="session")
def root(sshd: None) -> None:
    """Workers with their own root can be had."""
    if os.geteuid() != 0:
        missing("workers with their own root need root", installable=False)


@pytest.fixture(scope="session")
def paper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    """An emulator without workers, shared by all tests of the API; each uses names of its own."""
    with Emulator(tmp_path_factory.mktemp("paper"), workers=False, delays=QUICK) as cloud:
        yield cloud
        check_exchanges(cloud.requests)


@pytest.fixture(scope="session")
def _real(sshd: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    with Emulator(tmp_path_factory.mktemp("real"), delays=QUICK) as cloud:
        yield cloud
        check_exchanges(cloud.requests)


@pytest.fixture
def real(_real: Emulator) -> Iterator[Emulator]:
    """An emulator with real workers; faults are lifted after each test."""
    yield _real
    _real.clear()


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Emulator]]:
    """Emulators of a test's own."""
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
    """An SSH key pair."""
    path = tmp_path_factory.mktemp("key") / "id_ed25519"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "me@here", "-f", path], check=True)
    return path
