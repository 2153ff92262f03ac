"""A resource that is removed after its next transition became due must not come back."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tpux_emulator.clock import Clock
from tpux_emulator.cloud.catalog import load_catalog
from tpux_emulator.cloud.cloud import Cloud
from tpux_emulator.cloud.records import QueuedRecord
from tpux_emulator.cloud.scheduler import Scheduler
from tpux_emulator.cloud.store import Store
from tpux_emulator.messages import QueuedResource, QueuedState
from tpux_emulator.workers.address_only import AddressOnlyBackend
from tpux_emulator.workers.addresses import AddressBlock


def test_a_queued_resource_that_is_forgotten_while_it_is_due(tmp_path: Path) -> None:
    async def forget_while_due() -> list[str]:
        clock = Clock(1.0, 0.0, 0.0)
        cloud = Cloud(Store(tmp_path / "db"), clock, load_catalog(), AddressOnlyBackend(AddressBlock(1)))
        due = QueuedRecord(
            name="projects/p/locations/us-central2-b/queuedResources/q",
            spec=QueuedResource(),
            created=clock.now(),
            nodes=[],
            state=QueuedState.WAITING_FOR_RESOURCES,
            due=clock.now(),
        )
        cloud.save(due)
        scheduler = asyncio.create_task(Scheduler(cloud).run())
        await asyncio.sleep(0)  # the scheduler has created the task that will advance the record, and not run it
        cloud.delete(due)
        await asyncio.sleep(0.05)
        scheduler.cancel()
        return list(cloud.queued)

    assert asyncio.run(forget_while_due()) == []
