"""What allocators are asked and answer: requests, workers, allocations and their condition."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Union, cast

from tpux.plugin.failures import Failure

if TYPE_CHECKING:
    from tpux.plugin.sections import Section, TpuSection

JsonValue = Union[None, bool, int, float, str, "list[JsonValue]", "dict[str, JsonValue]"]
SavedState = Mapping[str, JsonValue]


@dataclass(frozen=True)
class Worker:
    """One TPU VM.

    Attributes:
        index: its number over the whole allocation.
        slice: the number of its slice.
        address: what its transport connects to.
        internal_ip: what the other workers reach it by.
        details: what else the transport needs (a port, a host key, a directory); no secrets.
    """

    index: int
    slice: int = 0
    address: str = ""
    internal_ip: str = ""
    details: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Allocation:
    """The machines that a job holds.

    Attributes:
        name: what the cloud, or the user, calls them.
        transport: the word of the plugin whose `connect` opens these workers.
        workers: its workers, by their number.
        slices: how many slices they form.
        storage: a directory that every worker sees and that outlives them; empty where there is none.
        zone: where they are.
        borrowed: tpux did not make them, so `tpu.release: created` leaves them.
        costs: whether keeping them costs anything; where not, nobody is in a hurry to release them.
    """

    name: str
    transport: str
    workers: tuple[Worker, ...]
    slices: int = 1
    storage: str = ""
    zone: str = ""
    borrowed: bool = False
    costs: bool = True

    def to_json(self) -> dict[str, JsonValue]:
        """The same as JSON knows it."""
        return cast("dict[str, JsonValue]", asdict(self) | {"workers": [asdict(worker) for worker in self.workers]})

    @classmethod
    def from_json(cls, data: Mapping[str, JsonValue]) -> Allocation:
        """The allocation that `to_json` wrote."""
        fields = dict(data)
        workers = cast("list[dict[str, JsonValue]]", fields.pop("workers"))
        return cls(workers=tuple(Worker(**worker) for worker in workers), **fields)  # type: ignore[arg-type]


@dataclass(frozen=True)
class ProvisionRequest:
    """What a job asks of an allocator.

    Attributes:
        name: the request's own name; the same for every step of one request. `provision` is
            idempotent on it.
        tpu: the config's `tpu` section.
        section: the allocator's own section of the config, where it has one and it is there.
        labels: whose it is: `tpux-store`, `tpux-user`, `tpux-job`.
        public_keys: what every transport wants put on the machines; told while they are asked for.
        directory: a directory of the job's on this machine that the allocator may write to.
        memo: what the allocator's last answer asked to be remembered.
        attempt: the job's attempt so far, 0 before the first.
    """

    name: str
    tpu: TpuSection
    section: Section | None
    labels: Mapping[str, str]
    public_keys: tuple[str, ...]
    directory: Path
    saved_state: SavedState = field(default_factory=dict)
    attempt: int = 0


@dataclass(frozen=True)
class Ready:
    """The machines are there."""

    allocation: Allocation
    saved_state: SavedState | None = None


@dataclass(frozen=True)
class Waiting:
    """Not yet.

    Attributes:
        why: what is waited for, as a user reads it.
        poll_after: seconds until the next step is worth taking.
        memo: what the next request must carry, written down before the next step is taken; None
            leaves it as it was.
    """

    why: str
    poll_after: float = 5.0
    saved_state: SavedState | None = None


@dataclass(frozen=True)
class Denied:
    """These machines are not to be had; asking again would not help."""

    failure: Failure


@dataclass(frozen=True)
class Released:
    """Nothing is left that costs money."""


MachineState = Literal["ready", "waiting", "preempted", "maintenance", "gone", "unknown"]


@dataclass(frozen=True)
class MachineStatus:
    """What state the machines are in now.

    Attributes:
        state: `unknown` where the answer could not be had: it is never read as gone.
        evidence: what the cloud said, word for word.
        poll_after: seconds until another look is worth it.
        details: what `tpux show` adds (node states, health).
    """

    state: MachineState
    evidence: str = ""
    poll_after: float = 30.0
    details: Mapping[str, str] = field(default_factory=dict)
