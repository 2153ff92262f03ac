"""Constants and helpers that the emulator's tests share."""

from __future__ import annotations

import os

import pytest

PROJECT, ZONE = "emulated", "us-central2-b"
PARENT = f"projects/{PROJECT}/locations/{ZONE}"
QUICK = {
    "node.CREATING": 0.1, "node.STARTING": 0.1, "node.STOPPING": 0.1, "node.DELETING": 0.1, "node.patch": 0.05,
    "queued-resource.CREATING": 0.05, "queued-resource.ACCEPTED": 0.05,
    "queued-resource.WAITING_FOR_RESOURCES": 0.05, "queued-resource.PROVISIONING": 0.05,
    "queued-resource.SUSPENDING": 0.1, "queued-resource.DELETING": 0.05, "queued-resource.retry": 0.1,
}  # fmt: skip


def missing(reason: str, *, installable: bool = True) -> None:
    """Skip the test; on CI, fail if what is missing can be installed."""
    if installable and os.environ.get("CI") == "true":
        pytest.fail(f"{reason}; scripts/test-deps.sh should have installed it")
    pytest.skip(reason)
