"""The fixture `tpux` runs the command with a store and a supervisor of its own."""

from tests.conftest import tpux

__all__ = ["tpux"]
