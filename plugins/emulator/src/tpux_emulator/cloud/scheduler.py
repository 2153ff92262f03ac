"""The loop that advances resources and applies faults when they are due."""

from __future__ import annotations

import asyncio

from tpux_emulator.cloud import node_state, queue_state
from tpux_emulator.cloud.cloud import Cloud
from tpux_emulator.cloud.records import NodeRecord, QueuedRecord
from tpux_emulator.cloud.scheduled_faults import apply_scheduled_fault


class Scheduler:
    """Advances each resource that is due in a task of its own, one task per resource at a time.

    Args:
        cloud: the cloud.
    """

    def __init__(self, cloud: Cloud) -> None:
        self._cloud = cloud
        self._busy: set[str] = set()

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            self._cloud.changed.clear()
            now = self._cloud.clock.now()
            for fault in [fault for fault in self._cloud.scheduled_faults.values() if fault.at <= now]:
                self._cloud.unschedule(fault)
                self._cloud.spawn(apply_scheduled_fault(self._cloud, fault))
            for record in [record for due, record in self._waiting() if due <= now]:
                self._busy.add(record.name)
                self._cloud.spawn(self._advance(record))
            try:
                await asyncio.wait_for(self._cloud.changed.wait(), self._pause())
            except TimeoutError:
                continue

    async def _advance(self, record: NodeRecord | QueuedRecord) -> None:
        try:
            if not self._cloud.exists(record):
                return  # removed after the task was created; advancing it would save it again
            if isinstance(record, NodeRecord):
                await node_state.advance(self._cloud, record)
            else:
                queue_state.advance(self._cloud, record)
        finally:
            self._busy.discard(record.name)
            self._cloud.changed.set()

    def _waiting(self) -> list[tuple[float, NodeRecord | QueuedRecord]]:
        records: list[NodeRecord | QueuedRecord] = [*self._cloud.nodes.values(), *self._cloud.queued.values()]
        return [(r.due, r) for r in records if r.due is not None and not r.frozen and r.name not in self._busy]

    def _pause(self) -> float | None:
        """Return the real seconds until something is due; None if nothing is."""
        times = [due for due, _ in self._waiting()]
        times += [fault.at for fault in self._cloud.scheduled_faults.values()]
        if not times:
            return None
        return self._cloud.clock.real_seconds(min(times) - self._cloud.clock.now())
