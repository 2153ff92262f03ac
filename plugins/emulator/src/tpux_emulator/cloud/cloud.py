"""The cloud's whole state, kept in memory and on disk alike."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine

from tpux_emulator.api.messages import Node, QueuedResource
from tpux_emulator.clock import Clock
from tpux_emulator.cloud import views
from tpux_emulator.cloud.fleet import Fleet
from tpux_emulator.cloud.records import Answered, Count, NodeRecord, OperationRecord, QueuedRecord
from tpux_emulator.faults.plans import Plan
from tpux_emulator.faults.rules import Effect, Rule
from tpux_emulator.offer import Offer
from tpux_emulator.settings import Settings
from tpux_emulator.store import Store

log = logging.getLogger("tpux_emulator.cloud")
Resource = NodeRecord | QueuedRecord | OperationRecord
_KINDS = {NodeRecord: "node", QueuedRecord: "queued", OperationRecord: "operation"}


class Cloud:
    """Everything there is, by full name.

    All changes happen on one event loop, between two awaits, so nothing here needs a lock.

    Args:
        store: where it is remembered.
        clock: the emulated time.
        offer: what can be asked for.
        fleet: who runs the workers.
    """

    def __init__(self, store: Store, clock: Clock, offer: Offer, fleet: Fleet) -> None:
        self.store, self.clock, self.offer, self.fleet = store, clock, offer, fleet
        self.nodes = store.load("node", NodeRecord)
        self.queued = store.load("queued", QueuedRecord)
        self.operations = store.load("operation", OperationRecord)
        self.plans = store.load("plan", Plan)
        self.rules = store.load("rule", Rule)
        self.answered = store.load("request", Answered)
        self.counts = store.load("count", Count)
        self.settings = store.load("settings", Settings).get("", Settings())
        self.changed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[None, None, None]) -> None:
        """Do something beside the requests; a mistake in it is logged and ends nothing else."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a task of the cloud failed", exc_info=error)

    def save(self, record: Resource) -> None:
        """Remember a new or changed resource, and wake the scheduler."""
        if isinstance(record, NodeRecord):
            self.nodes[record.name] = record
        elif isinstance(record, QueuedRecord):
            self.queued[record.name] = record
        else:
            self.operations[record.name] = record
        self.store.put(_KINDS[type(record)], record.name, record)
        self.changed.set()

    def drop(self, record: Resource) -> None:
        """Forget a resource."""
        for table in (self.nodes, self.queued, self.operations):
            table.pop(record.name, None)
        self.store.drop(_KINDS[type(record)], record.name)
        self.changed.set()

    def plan(self, plan: Plan) -> None:
        """Remember a planned fault."""
        self.plans[plan.id] = plan
        self.store.put("plan", plan.id, plan)
        self.changed.set()

    def forget_plan(self, plan: Plan) -> None:
        """Forget a planned fault."""
        self.plans.pop(plan.id, None)
        self.store.drop("plan", plan.id)

    def change_settings(self, settings: Settings) -> None:
        """Take over new settings."""
        self.settings = settings
        self.store.put("settings", "", settings)
        self.changed.set()

    def count(self, name: str) -> int:
        """The next number of a counter, from 1."""
        counter = self.counts.setdefault(name, Count())
        counter.value += 1
        self.store.put("count", name, counter)
        return counter.value

    def answer(self, request_id: str, operation: OperationRecord) -> None:
        """Remember which operation a request id got."""
        self.answered[request_id] = Answered(operation=operation.name)
        self.store.put("request", request_id, self.answered[request_id])

    def add_rule(self, rule: Rule) -> Rule:
        """Set a standing fault; it gets an id."""
        rule = rule.model_copy(update={"id": rule.id or f"{rule.effect.value}-{self.count('rule')}"})
        self.rules[rule.id] = rule
        self.store.put("rule", rule.id, rule)
        self.changed.set()
        return rule

    def clear_rule(self, rule_id: str) -> bool:
        """Lift a standing fault; whether there was one."""
        found = self.rules.pop(rule_id, None)
        self.store.drop("rule", rule_id)
        self.changed.set()
        return found is not None

    def find_rule(self, effect: Effect, *, zone: str = "", method: str = "", name: str = "") -> Rule | None:
        """The first standing fault that speaks about this, left as it is."""
        now = self.clock.now()
        short = name.rpartition("/")[2]
        for rule in self.rules.values():
            if rule.matches(effect, zone=zone, method=method, name=short, now=now):
                return rule
        return None

    def take_rule(self, effect: Effect, *, zone: str = "", method: str = "", name: str = "") -> Rule | None:
        """The first standing fault that speaks about this, counted as used once."""
        rule = self.find_rule(effect, zone=zone, method=method, name=name)
        if rule is None or rule.count is None:
            return rule
        if rule.count == 1:
            self.clear_rule(rule.id)
            return rule
        left = rule.model_copy(update={"count": rule.count - 1})
        self.rules[rule.id] = left
        self.store.put("rule", rule.id, left)
        return rule

    def show_node(self, record: NodeRecord) -> Node:
        """The node as the API shows it."""
        return views.node(record, self.offer)

    def show_queued(self, record: QueuedRecord) -> QueuedResource:
        """The queued resource as the API shows it."""
        return views.queued(record)

    def nodes_of(self, record: QueuedRecord) -> list[NodeRecord]:
        """The nodes of a queued resource that exist."""
        return [self.nodes[name] for name in record.nodes if name in self.nodes]
