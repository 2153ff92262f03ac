"""Transitions that overlap with the removal of a resource."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tpux_emulator.clock import Clock
from tpux_emulator.cloud import node_state, operations
from tpux_emulator.cloud.catalog import load_catalog
from tpux_emulator.cloud.cloud import Cloud
from tpux_emulator.cloud.records import NodeRecord, QueuedRecord
from tpux_emulator.cloud.scheduler import Scheduler
from tpux_emulator.cloud.store import Store
from tpux_emulator.errors import Status
from tpux_emulator.messages import Node, QueuedResource, QueuedState
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


def test_a_failed_creation_is_done_once_its_node_is_gone(tmp_path: Path) -> None:
    """A client that requests the node again when the operation has failed must not get a 409."""
    seen = []

    class SlowBackend(AddressOnlyBackend):
        async def stop_all(self, node: NodeRecord, *, keep_disks: bool) -> None:
            seen.append(cloud.operations[name].ended)
            await super().stop_all(node, keep_disks=keep_disks)

    cloud = Cloud(Store(tmp_path / "db"), Clock(1.0, 0.0, 0.0), load_catalog(), SlowBackend(AddressBlock(1)))
    full = "projects/p/locations/us-central2-b/nodes/n"

    async def fail() -> str:
        operation = operations.begin(cloud, "create", full)
        spec = Node(accelerator_type="v4-8", runtime_version="x")
        record = node_state.add(cloud, full, spec, operation=operation.name)
        record.creation_error = Status(code=8, message="no more capacity")
        task = asyncio.create_task(node_state.advance(cloud, record))
        nonlocal name
        name = operation.name
        await task
        return name

    name = ""
    assert cloud.operations[asyncio.run(fail())].error is not None
    assert seen == [None]
    assert cloud.nodes == {}
