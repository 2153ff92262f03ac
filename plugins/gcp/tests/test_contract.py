"""The allocators keep their contract on the emulator."""

from __future__ import annotations

import pytest

from tpux_testing import allocator_contract, hooks_contract, section_contract

WORDS = pytest.mark.parametrize("word", ["tpu-vm", "queued-resources"])


@WORDS
def test_hooks_and_section(word):
    hooks_contract(word)
    section_contract(word)


@pytest.mark.parametrize(
    ("word", "tpu"), [("tpu-vm", {}), ("queued-resources", {"accelerator": "v4-16", "node_count": 2})]
)
def test_allocator(cloud, word, tpu):
    def existing() -> list[object]:
        status = cloud.status()
        return [*status["nodes"], *status["queuedResources"]]

    given = {"project": "test", "zone": "us-central2-b", "accelerator": "v4-8", "endpoint": cloud.url, **tpu}
    allocator_contract(word, {"tpu": given}, existing=existing)
