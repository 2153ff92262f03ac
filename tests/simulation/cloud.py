"""A simulated cloud: an allocator whose machines live in this process and outlive every supervisor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from tests.simulation.worker import Machine
from tpux import Allocation, MachineStatus, ProvisionRequest, Ready, Released, Waiting, Worker, hookimpl

T = TypeVar("T")
LATE = 90.0
"""Seconds after which a creation takes effect whose request was cut off."""
NAME = "sim"


@dataclass
class Node:
    """The machines of one request: what the cloud calls a node."""

    name: str
    owner: str
    machines: list[Machine]
    ready_at: float
    state: str = "live"
    gone_at: float = 0.0


class Cloud:
    """The allocator.

    Args:
        now: the time.
        call: makes a call of the allocator: its name, and what it does.
        make_machine: makes a machine.
        workers: how many a node has.
    """

    def __init__(
        self,
        now: Callable[[], float],
        call: Callable[[str, Callable[[], object]], object],
        make_machine: Callable[[], Machine],
        workers: int,
    ) -> None:
        self._now, self._call, self._make_machine, self._workers = now, call, make_machine, workers
        self.nodes: dict[str, Node] = {}
        self.created = self.deleted = 0
        self.late: list[tuple[float, str, str]] = []
        self.problems: list[str] = []
        self.addresses: dict[str, Machine] = {}
        self.create_takes, self.delete_takes = 20.0, 5.0
        self.asked: ProvisionRequest | None = None

    # --- what the world does ------------------------------------------------------------------------

    def live(self) -> list[Node]:
        self.settle()
        return [node for node in self.nodes.values() if node.state in {"live", "deleting"}]

    def preempt(self) -> None:
        for node in self.live():
            if node.state == "live":
                node.state = "preempted"
                for machine in node.machines:
                    machine.destroy()

    def settle(self) -> None:
        """Let happen what is due by now."""
        now = self._now()
        for each in [one for one in self.late if one[0] <= now]:
            self.late.remove(each)
            self._create(each[1], each[2])
        for node in self.nodes.values():
            if node.state == "deleting" and node.gone_at <= now:
                node.state = "gone"

    def _create(self, name: str, owner: str) -> None:
        if (known := self.nodes.get(name)) and known.state in {"live", "deleting"}:
            return  # 409: it exists
        machines = [self._make_machine() for _ in range(self._workers)]
        self.nodes[name] = Node(name, owner, machines, self._now() + self.create_takes)
        self.created += 1
        for index, machine in enumerate(machines):
            self.addresses[f"{name}-{self.created}-{index}"] = machine
        held = {"live", "deleting"}  # one that is being deleted still counts, and costs
        if len(mine := [one.name for one in self.nodes.values() if one.state in held and one.owner == owner]) > 1:
            self.problems.append(f"two allocations of one job at a time: {mine}")

    # --- the allocator's hooks ----------------------------------------------------------------------

    @hookimpl
    def provision(self, request: ProvisionRequest) -> Ready | Waiting:
        self.asked = request
        return self._call("provision", lambda: self._provision(request))  # type: ignore[return-value]

    def cut_off(self, request: ProvisionRequest) -> None:
        """Take effect later, and unseen: the request was sent, and its answer will never come."""
        self.late.append((self._now() + LATE, request.name, request.labels["tpux-job"]))

    def _provision(self, request: ProvisionRequest) -> Ready | Waiting:
        self.settle()
        node = self.nodes.get(request.name)
        if node is None or node.state in {"gone", "preempted"}:
            self._create(request.name, request.labels["tpux-job"])
            node = self.nodes[request.name]
        if node.state == "deleting":
            self.problems.append(f"machines were requested while {node.name} was being deleted")
            return Waiting("the node is being deleted", 2.0)
        if (left := node.ready_at - self._now()) > 0:
            return Waiting("creating the node", min(left, 5.0), {"created": True})
        names = {id(machine): name for name, machine in self.addresses.items()}
        workers = tuple(
            Worker(index, address=names[id(machine)], internal_ip=f"10.0.0.{index}")
            for index, machine in enumerate(node.machines)
        )
        return Ready(Allocation(request.name, "simnet", workers), {"created": True})

    @hookimpl
    def inspect(self, request: ProvisionRequest) -> MachineStatus:
        return self._call("inspect", lambda: self._inspect(request))  # type: ignore[return-value]

    def _inspect(self, request: ProvisionRequest) -> MachineStatus:
        self.settle()
        node = self.nodes.get(request.name)
        if node is None or node.state in {"gone", "deleting"}:
            return MachineStatus("gone", evidence="there is no such node", confirmed=True)
        if node.state == "preempted":
            return MachineStatus("preempted", evidence="the node is PREEMPTED", confirmed=True)
        return MachineStatus("ready", poll_after=30.0)

    @hookimpl
    def release(self, request: ProvisionRequest) -> Released | Waiting:
        return self._call("release", lambda: self._release(request))  # type: ignore[return-value]

    def _release(self, request: ProvisionRequest) -> Released | Waiting:
        self.settle()
        node, now = self.nodes.get(request.name), self._now()
        if node is not None and node.state == "live":
            for machine in node.machines:
                machine.destroy()
            node.state, node.gone_at = "deleting", now + self.delete_takes
            self.deleted += 1
        if node is not None and node.state == "deleting":
            return Waiting("deleting the node", 2.0)
        if node is not None and node.state == "preempted":
            node.state = "gone"
        if request.interrupted:  # a creation that was not answered may still take effect
            since = float(str(request.saved_state.get("looked_since", now)))
            if (left := since + 2 * LATE - now) > 0:
                return Waiting("a creation was not answered", min(left, 15.0), {"looked_since": since})
        return Released()
