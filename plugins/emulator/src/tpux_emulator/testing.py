"""For tests: `def test_x(tpu_emulator): cloud = tpu_emulator()`. A pytest plugin; it imports little until used."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tpux_emulator.emulator import Emulator

    MakeEmulator = Callable[..., Emulator]


@pytest.fixture
def tpu_emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MakeEmulator]:
    """Starts emulators that end with the test; takes the arguments of `tpux_emulator.emulator.Emulator`."""
    yield from _emulators(tmp_path_factory)


@pytest.fixture(scope="session")
def tpu_emulators(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MakeEmulator]:
    """The same, for emulators that several tests share; they end with the session."""
    yield from _emulators(tmp_path_factory)


def _emulators(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MakeEmulator]:
    from tpux_emulator.emulator import Emulator

    with ExitStack() as running:

        def make(**options: object) -> Emulator:
            options.setdefault("home", tmp_path_factory.mktemp("tpu-emulator"))
            return running.enter_context(Emulator(**options))  # type: ignore[arg-type]

        yield make
