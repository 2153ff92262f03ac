"""The plugin keeps the contracts of a module."""

from __future__ import annotations

import pytest

from tpux_testing import command_contract, hooks_contract, module_contract, section_contract


def test_hooks_and_section():
    hooks_contract("code")
    section_contract("code", example={"dir": "."})


def test_module(repository):
    repository.write("a b/c'd.py")
    module_contract("code", {"dir": str(repository.path)})


@pytest.mark.system
def test_sync(repository, tpux_cli):
    job = tpux_cli.run_job({"code": {"dir": str(repository.path)}}, keep=True)
    without = tpux_cli.run_job()
    repository.write("train.py", "print(2)\n")
    wrong = [["77"], [without], [job, "--branch", "a", "--tag", "b"]]
    command_contract("sync", [job], [job, "--branch", "no-such"], wrong=wrong, cli=tpux_cli)
