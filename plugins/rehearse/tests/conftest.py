"""The fixtures of tests/: the command with a store and a supervisor of its own."""

from __future__ import annotations

from tests.conftest import faults, no_program_is_left, runner, tpux

__all__ = ["faults", "no_program_is_left", "runner", "tpux"]
