"""Events of the machines that a job holds: request, takeover by another job, and release."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tpux.plugin.events.event import Event
from tpux.plugin.machines import Allocation, JsonValue, Worker


@dataclass(frozen=True, kw_only=True)
class AllocationRequested(Event):
    """Machines are about to be requested: from here on a release is pending.

    Attributes:
        name: the name of the request.
        allocator: the plugin that is asked.
    """

    type = "allocation-requested"
    name: str
    allocator: str


@dataclass(frozen=True, kw_only=True)
class Allocated(Event):
    """The machines are ready.

    Attributes:
        allocation: the machines and their workers.
        saved_state: what the allocator asked to be kept; null leaves it as it was.
    """

    type = "allocated"
    allocation: Allocation
    saved_state: Mapping[str, JsonValue] | None = None


@dataclass(frozen=True, kw_only=True)
class TransferStarted(Event):
    """Another job is about to take over the machines: from here on this job neither releases nor uses them.

    Attributes:
        to: the other job, created with `takes_over`.
    """

    type = "transfer-started"
    to: str


@dataclass(frozen=True, kw_only=True)
class TransferCancelled(Event):
    """The other job has ended, or was deleted, before it took over the machines: they are this job's as before."""

    type = "transfer-cancelled"


@dataclass(frozen=True, kw_only=True)
class CleanUpStarted(Event):
    """The modules remove what must not stay on the workers of an ended job. The next start sets all up again."""

    type = "clean-up-started"


@dataclass(frozen=True, kw_only=True)
class TakenOver(Event):
    """The job holds the machines of another one, and has to release them. Their labels and leases change after this.

    Attributes:
        job: the other job.
        name: the name under which they were requested.
        allocation: the machines.
        saved_state: what the allocator has kept for its next step.
        former: the owner's labels that the machines may still have (`ProvisionRequest.former`).
    """

    type = "taken-over"
    job: str
    name: str
    allocation: Allocation
    saved_state: Mapping[str, JsonValue]
    former: tuple[Mapping[str, str], ...]


@dataclass(frozen=True, kw_only=True)
class Transferred(Event):
    """The other job has taken over the machines, and their labels name it: this job holds none.

    Attributes:
        to: the other job.
        token: the digits that replace those of `created`: the other job's machines may keep their name.
    """

    type = "transferred"
    to: str
    token: str


@dataclass(frozen=True, kw_only=True)
class ReleaseStarted(Event):
    """The allocator is about to be asked to release the machines: from here on nothing can keep them."""

    type = "release-started"


@dataclass(frozen=True, kw_only=True)
class WorkerUpdated(Event):
    """The allocator describes a worker differently now: a rebuilt VM has published a new host key.

    Attributes:
        worker: the worker as it is described now.
    """

    type = "worker-updated"
    worker: Worker


@dataclass(frozen=True, kw_only=True)
class Released(Event):
    """The allocator has confirmed that nothing of the machines is left."""

    type = "released"


@dataclass(frozen=True, kw_only=True)
class ReleaseScheduled(Event):
    """A user has changed when the machines of an ended job are released.

    Attributes:
        release_at: when, in seconds since the epoch; null if they are kept until a user releases them.
    """

    type = "release-scheduled"
    release_at: float | None
