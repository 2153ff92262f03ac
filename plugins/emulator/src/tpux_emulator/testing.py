"""A pytest plugin with fixtures that start emulators: `def test_x(tpu_emulator): cloud = tpu_emulator()`."""

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
    """Return a function that starts an emulator, with the arguments of `Emulator`; it is stopped after the test."""
    yield from _emulators(tmp_path_factory)


@pytest.fixture(scope="session")
def tpu_emulators(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MakeEmulator]:
    """Return a function that starts an emulator, which is stopped after the session."""
    yield from _emulators(tmp_path_factory)


def _emulators(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MakeEmulator]:
    from tpux_emulator.emulator import Emulator  # only here: every pytest session imports this module

    with ExitStack() as running:

        def make(**options: object) -> Emulator:
            options.setdefault("home", tmp_path_factory.mktemp("tpu-emulator"))
            return running.enter_context(Emulator(**options))  # type: ignore[arg-type]

        yield make
