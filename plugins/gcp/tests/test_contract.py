"""The allocators keep their contract on the emulator."""

from __future__ import annotations

import os

import pytest

from tpux_testing import allocator_contract, command_contract, hooks_contract, section_contract

WORDS = pytest.mark.parametrize("word", ["tpu-vm", "queued-resources"])


@pytest.mark.system
@WORDS
def test_hooks_and_section(word):
    hooks_contract(word)
    section_contract(word)


@pytest.mark.system
@pytest.mark.parametrize(
    ("word", "tpu"), [("tpu-vm", {}), ("queued-resources", {"accelerator": "v4-16", "node_count": 2})]
)
def test_allocator(cloud, word, tpu):
    def existing() -> list[object]:
        status = cloud.status()
        return [*status["nodes"], *status["queuedResources"]]

    given = {"project": "test", "zone": "us-central2-b", "accelerator": "v4-8", "endpoint": cloud.url, **tpu}
    allocator_contract(word, {"tpu": given}, existing=existing)


def test_tpu(cloud, tpux_cli):
    names = ("TPUX_GCP_ENDPOINT", "CLOUDSDK_CONFIG")
    tpux_cli.env |= {name: os.environ[name] for name in names} | {"GOOGLE_CLOUD_PROJECT": "test"}
    zone = ["--zone", "us-central2-b", "--json"]
    calls = [["list", *zone], ["types", *zone], ["versions", *zone], ["orphans", "--json"]]
    command_contract("tpu", *calls, wrong=[["status"], ["create", "x"], ["nonsense"]], cli=tpux_cli)
