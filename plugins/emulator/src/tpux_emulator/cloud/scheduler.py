"""Moves everything on whose time has come."""

from __future__ import annotations

import asyncio
import logging

from tpux_emulator.cloud import node_life, queue_life
from tpux_emulator.cloud.cloud import Cloud
from tpux_emulator.cloud.planned import carry_out
from tpux_emulator.cloud.records import NodeRecord, QueuedRecord

log = logging.getLogger("tpux_emulator.cloud")


class Scheduler:
    """One loop over the cloud; each resource that is due gets a task of its own, one at a time.

    Args:
        cloud: what to move on.
    """

    def __init__(self, cloud: Cloud) -> None:
        self._cloud = cloud
        self._busy: set[str] = set()

    async def run(self) -> None:
        """Move things on until cancelled."""
        while True:
            self._cloud.changed.clear()
            now = self._cloud.clock.now()
            for plan in [plan for plan in self._cloud.plans.values() if plan.at <= now]:
                self._cloud.forget_plan(plan)
                self._cloud.spawn(carry_out(self._cloud, plan))
            for record in self._due(now):
                self._busy.add(record.name)
                self._cloud.spawn(self._step(record))
            try:
                await asyncio.wait_for(self._cloud.changed.wait(), self._pause())
            except asyncio.TimeoutError:
                continue

    async def _step(self, record: NodeRecord | QueuedRecord) -> None:
        try:
            if isinstance(record, NodeRecord):
                await node_life.step(self._cloud, record)
            else:
                await queue_life.step(self._cloud, record)
        finally:
            self._busy.discard(record.name)
            self._cloud.changed.set()

    def _due(self, now: float) -> list[NodeRecord | QueuedRecord]:
        return [record for record in self._waiting() if record.due is not None and record.due <= now]

    def _waiting(self) -> list[NodeRecord | QueuedRecord]:
        records: list[NodeRecord | QueuedRecord] = [*self._cloud.nodes.values(), *self._cloud.queued.values()]
        return [r for r in records if r.due is not None and not r.stuck and r.name not in self._busy]

    def _pause(self) -> float | None:
        times = [record.due for record in self._waiting() if record.due is not None]
        times += [plan.at for plan in self._cloud.plans.values()]
        if not times:
            return None
        return self._cloud.clock.real_seconds(min(times) - self._cloud.clock.now())
