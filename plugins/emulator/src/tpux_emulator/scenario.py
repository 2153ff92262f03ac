"""Scenarios: what a cloud begins with, from a YAML file."""

from __future__ import annotations

from tpux_emulator.cloud.cloud import Cloud


class Scenario:
    """Placeholder."""

    def begin(self, cloud: Cloud) -> None:
        """Nothing yet."""
