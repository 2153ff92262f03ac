"""The states of a job, and what a user can request of it."""

from __future__ import annotations

from typing import Literal

JobState = Literal[
    "pending", "provisioning", "setting-up", "running", "recovering", "stopping", "stopped", "succeeded", "failed"
]
RequestAction = Literal["stop", "resume", "rerun", "setup", "delete", "transfer"]
