"""The fixture `tpux`: the command line, with plugins of the test."""

from __future__ import annotations

from tests.conftest import no_program_is_left, tpux

__all__ = ["no_program_is_left", "tpux"]
