"""The plugin keeps the contracts of a module and of an environment."""

from __future__ import annotations

import pytest

from tpux_testing import environment_contract, hooks_contract, module_contract, section_contract


def test_hooks_and_section():
    hooks_contract("conda")
    section_contract("conda")


def test_module(workers):
    workers.write("tiny")
    config = {"name": "train", "config_file": workers.file}
    module_contract("conda", config, new_host=workers.host, ignore=[".cache*", "*/conda-meta/*"])


def test_environment(workers, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", workers.path)
    workers.write("tiny")
    environment_contract("conda", {"name": "train", "config_file": workers.file})
