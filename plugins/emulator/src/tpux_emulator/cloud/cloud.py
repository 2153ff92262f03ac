"""The state of the emulated cloud, in memory and on disk."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine

from tpux_emulator.clock import Clock
from tpux_emulator.cloud.catalog import Catalog
from tpux_emulator.cloud.fault_rules import Effect, FaultRule
from tpux_emulator.cloud.records import (
    Counter,
    LoginProfile,
    NodeRecord,
    OperationRecord,
    QueuedRecord,
    RequestId,
    ScheduledFault,
    short_name,
)
from tpux_emulator.cloud.settings import Settings
from tpux_emulator.cloud.store import Store
from tpux_emulator.cloud.worker_backend import WorkerBackend

log = logging.getLogger("tpux_emulator.cloud")
Resource = NodeRecord | QueuedRecord | OperationRecord
_KINDS = {NodeRecord: "node", QueuedRecord: "queued", OperationRecord: "operation"}


class Cloud:
    """All resources by full name, the faults and the settings.

    Everything runs on one event loop and each change is made between two awaits, so no locks are needed.

    Args:
        store: persists every change.
        clock: the emulated time.
        catalog: the accelerators and zones that exist.
        backend: runs the workers.
    """

    def __init__(self, store: Store, clock: Clock, catalog: Catalog, backend: WorkerBackend) -> None:
        self.store, self.clock, self.catalog, self.backend = store, clock, catalog, backend
        self.nodes = store.load("node", NodeRecord)
        self.queued = store.load("queued", QueuedRecord)
        self.operations = store.load("operation", OperationRecord)
        self.scheduled_faults = store.load("scheduled-fault", ScheduledFault)
        self.rules = store.load("rule", FaultRule)
        self.request_ids = store.load("request", RequestId)
        self.counters = store.load("count", Counter)
        self.profiles = store.load("profile", LoginProfile)
        self.settings = store.load("settings", Settings).get("", Settings())
        self.changed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[None, None, None]) -> None:
        """Run a coroutine in the background; an exception in it is logged."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a background task failed", exc_info=error)

    def save(self, record: Resource) -> None:
        """Persist a new or changed resource and wake the scheduler."""
        if isinstance(record, NodeRecord):
            record.os_login_keys = self._os_login_keys(record)
            self.nodes[record.name] = record
        elif isinstance(record, QueuedRecord):
            self.queued[record.name] = record
        else:
            self.operations[record.name] = record
        self.store.put(_KINDS[type(record)], record.name, record)
        self.changed.set()

    def delete(self, record: Resource) -> None:
        """Remove a resource, and the faults that are planned for it: a node of the same name is another one."""
        for table in (self.nodes, self.queued, self.operations):
            table.pop(record.name, None)
        self.store.delete(_KINDS[type(record)], record.name)
        for fault in [fault for fault in self.scheduled_faults.values() if fault.node == record.name]:
            self.unschedule(fault)
        self.changed.set()

    def exists(self, record: Resource) -> bool:
        """Return whether a resource has been neither removed nor replaced by a new one of its name."""
        return any(table.get(record.name) is record for table in (self.nodes, self.queued, self.operations))

    def nodes_of(self, record: QueuedRecord) -> list[NodeRecord]:
        """Return the existing nodes of a queued resource."""
        return [self.nodes[name] for name in record.nodes if name in self.nodes]

    def schedule(self, fault: ScheduledFault) -> None:
        """Add a scheduled fault."""
        self.scheduled_faults[fault.id] = fault
        self.store.put("scheduled-fault", fault.id, fault)
        self.changed.set()

    def unschedule(self, fault: ScheduledFault) -> None:
        """Remove a scheduled fault."""
        self.scheduled_faults.pop(fault.id, None)
        self.store.delete("scheduled-fault", fault.id)

    def change_settings(self, settings: Settings) -> None:
        """Replace the settings."""
        self.settings = settings
        self.store.put("settings", "", settings)
        self.changed.set()

    def change_profile(self, profile: LoginProfile) -> None:
        """Replace an OS Login profile, and update the accounts of the workers that use it."""
        self.profiles[profile.email] = profile
        self.store.put("profile", profile.email, profile)
        for node in list(self.nodes.values()):
            self.save(node)
            if node.os_login_keys is not None:
                self.spawn(self.backend.update_accounts(node))

    def _os_login_keys(self, node: NodeRecord) -> list[str] | None:
        metadata = {**self.settings.project_metadata, **(node.spec.metadata or {})}
        if metadata.get("enable-oslogin", "").upper() not in {"TRUE", "1", "Y", "YES"}:
            return None
        return [f"{profile.username}:{key}" for profile in self.profiles.values() for key in profile.keys.values()]

    def next_number(self, name: str) -> int:
        """Return the next number of a named counter, starting at 1."""
        counter = self.counters.setdefault(name, Counter())
        counter.value += 1
        self.store.put("count", name, counter)
        return counter.value

    def remember_request_id(self, request_id: str, operation: OperationRecord) -> None:
        """Remember the operation that a client's `requestId` started."""
        self.request_ids[request_id] = RequestId(operation=operation.name)
        self.store.put("request", request_id, self.request_ids[request_id])

    def add_rule(self, rule: FaultRule) -> FaultRule:
        """Add a fault rule and return it with its id."""
        rule = rule.model_copy(update={"id": rule.id or f"{rule.effect.value}-{self.next_number('rule')}"})
        self.rules[rule.id] = rule
        self.store.put("rule", rule.id, rule)
        self.changed.set()
        return rule

    def clear_rule(self, rule_id: str) -> bool:
        """Remove a fault rule. Return False if there is no such rule."""
        found = self.rules.pop(rule_id, None)
        self.store.delete("rule", rule_id)
        self.changed.set()
        return found is not None

    def match_rule(self, effect: Effect, *, zone: str = "", method: str = "", name: str = "") -> FaultRule | None:
        """Return the first matching fault rule, without counting it as used.

        Args:
            effect: what the rule does.
            zone: the zone of the request; "" if it has none.
            method: its method; "" if it has none.
            name: the resource that it names.
        """
        now = self.clock.now()
        for rule in self.rules.values():
            if rule.matches(effect, zone=zone, method=method, name=short_name(name), now=now):
                return rule
        return None

    def consume_rule(self, effect: Effect, *, zone: str = "", method: str = "", name: str = "") -> FaultRule | None:
        """Return the first matching fault rule and count it as used once.

        Args:
            effect: what the rule does.
            zone: the zone of the request; "" if it has none.
            method: its method; "" if it has none.
            name: the resource that it names.
        """
        rule = self.match_rule(effect, zone=zone, method=method, name=name)
        if rule is None or rule.count is None:
            return rule
        if rule.count == 1:
            self.clear_rule(rule.id)
            return rule
        remaining = rule.model_copy(update={"count": rule.count - 1})
        self.rules[rule.id] = remaining
        self.store.put("rule", rule.id, remaining)
        return rule
