"""What tpux relies on."""

from __future__ import annotations

from tpux_testing import hooks_contract


def test_contract() -> None:
    """Each hook has the arguments and gives the answers that it should."""
    hooks_contract("sample")
