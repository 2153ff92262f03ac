"""The plugin keeps the contracts of a module."""

from __future__ import annotations

from tpux_testing import hooks_contract, module_contract, section_contract


def test_hooks_and_section():
    hooks_contract("code")
    section_contract("code", example={"dir": "."})


def test_module(repository):
    repository.write("a b/c'd.py")
    module_contract("code", {"dir": str(repository.path)})
