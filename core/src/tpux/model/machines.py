"""The arguments and answers of allocators: requests, workers, allocations and their status."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tpux.model.failures import Failure
from tpux.model.json import JsonValue, SavedState, dump_fields

if TYPE_CHECKING:
    from tpux.model.sections import Section, TpuSection

COORDINATOR_PORT = 8476
"""Where jax.distributed's coordinator listens unless a program chooses another port (jax's own default)."""


@dataclass(frozen=True)
class Worker:
    """One TPU VM.

    Attributes:
        index: its number in the whole allocation, from 0.
        slice: the number of its slice, from 0.
        address: the address that the transport connects to.
        internal_ip: the address at which the other workers reach it.
        details: further data for the transport (a port, a host key, a directory); no secrets.
    """

    index: int
    slice: int = 0
    address: str = ""
    internal_ip: str = ""
    details: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Peer:
    """Another worker of the job, as one worker reaches it.

    Attributes:
        index: its number.
        shell: a command for the one worker that runs a shell script, its stdin, in the home directory of the other;
            stdout, stderr and the exit code are the script's, and 255 if the other worker was not reached.
    """

    index: int
    shell: tuple[str, ...]


@dataclass(frozen=True)
class Allocation:
    """The machines that a job holds.

    Attributes:
        name: their name in the cloud, or the user's.
        transport: the plugin whose `connect` opens these workers.
        workers: in the order of their indices.
        slices: the number of slices.
        storage: a directory that every worker sees and that outlives them; "" if there is none.
        zone: the zone they are in.
        borrowed: tpux did not create them, so `tpu.release: created` does not release them.
        costs: whether keeping them costs money or other people's turn; if not, they are not released after a delay.
        notice: a shell command that waits on a worker until a preemption of it is announced, and then exits with 0;
            its output is the evidence. With any other exit code it is run again, so it may end after some minutes.
            It succeeds at once if the announcement came before it was started. "" if there are no announcements.
        coordinator_port: a port that is free on the first worker, for the coordinator of jax.distributed.
        accelerator: their type, where the config lists several; "" if it is the config's.
        pricing: `spot`, `preemptible`, `ondemand`, or "" if that is unknown.
    """

    name: str
    transport: str
    workers: tuple[Worker, ...]
    slices: int = 1
    storage: str = ""
    zone: str = ""
    borrowed: bool = False
    costs: bool = True
    notice: str = ""
    coordinator_port: int = COORDINATOR_PORT
    accelerator: str = ""
    pricing: str = ""

    def to_json(self) -> dict[str, JsonValue]:
        """Return the fields as JSON data."""
        return dump_fields(self)


@dataclass(frozen=True)
class ProvisionRequest:
    """A job's request for machines.

    Attributes:
        name: the request's name, the same in every step; `provision` is idempotent on it.
        tpu: the config's `tpu` section.
        section: the allocator's own section of the config, None if there is none.
        labels: the owner: `tpux-store`, `tpux-user`, `tpux-job`, `tpux-token`.
        public_keys: the keys to install on the machines; present while they are being requested.
        directory: a directory of the job on this machine that the allocator may write to.
        saved_state: the `saved_state` of the allocator's last answer.
        attempt: the job's last attempt, 0 before the first.
        resolved: what the allocator's `resolve` returned; it stays the same while the job holds machines.
        describe_workers: `inspect` is to return `MachineStatus.workers`, since another machine answers than the one of
            the allocation; otherwise it need not.
        interrupted: an earlier call of `provision` for this request did not return an answer, because it raised an
            exception or its process ended: what it has sent may still take effect. True in each call of `provision`
            until one has returned, and in each call of `release` after that.
        previous_owners: the labels of the jobs from which this one has taken over its machines (`tpux run --on JOB`),
            with their `name` and `saved_state`; only if the section `tpu` is `transferable`. Machines with such labels
            are this job's: `provision` gives them the labels of this job, and takes over leases, before it returns
            `Ready`.
        shared: the job has ended, and others may have the machines that it keeps (`job.share`): `inspect` is to return
            `MachineStatus.wanted_by`; otherwise it need not.
    """

    name: str
    tpu: TpuSection
    section: Section | None
    labels: Mapping[str, str]
    public_keys: tuple[str, ...]
    directory: Path
    saved_state: SavedState = field(default_factory=dict)
    attempt: int = 0
    resolved: Mapping[str, JsonValue] = field(default_factory=dict)
    describe_workers: bool = False
    interrupted: bool = False
    previous_owners: Sequence[Mapping[str, str]] = ()
    shared: bool = False


@dataclass(frozen=True)
class Ready:
    """The machines are ready for use.

    Attributes:
        allocation: the machines.
        saved_state: as in `Waiting`.
    """

    allocation: Allocation
    saved_state: SavedState | None = None


@dataclass(frozen=True)
class Waiting:
    """Not ready yet, or not released yet.

    Attributes:
        why: the reason, as shown to the user.
        poll_after: seconds until the next call, 0 or more; at least 0.05, and 0.5 after 20 shorter ones in a row.
        saved_state: data for the next call's `ProvisionRequest`, stored before that call; None leaves it unchanged.
        ends_within: of a release that can only be waited for: the most seconds that it still takes. `tpux delete` then
            reports when it ends, and does not wait.
        hint: what the user must do before it can go on, such as to log in again: shown with `why`, and written as an
            event `warned` when it is new; "" if nothing.
    """

    why: str
    poll_after: float = 5.0
    saved_state: SavedState | None = None
    ends_within: float | None = None
    hint: str = ""


@dataclass(frozen=True)
class Denied:
    """The request was refused, and repeating it would not help."""

    failure: Failure


@dataclass(frozen=True)
class Released:
    """Confirmed: nothing is left that costs money, and that the job may delete.

    Attributes:
        left: what remains although the job created it, as it does not look like its own any more or cannot be removed,
            and the command that removes it; "" if nothing does.
    """

    left: str = ""


@dataclass(frozen=True)
class Orphan:
    """Machines that a job of this store created, and that no job holds any more.

    Attributes:
        name: their name.
        where: the place, such as a zone and a project.
        what: what they are, and their state.
        command: the command that deletes them.
    """

    name: str
    where: str
    what: str
    command: str


@dataclass(frozen=True)
class OrphanReport:
    """What the last search for orphans found, and when, in seconds since the epoch."""

    at: float
    orphans: tuple[Orphan, ...]


MachineState = Literal["ready", "waiting", "preempted", "maintenance", "gone", "unknown"]


@dataclass(frozen=True)
class MachineStatus:
    """The current state of the machines.

    Attributes:
        state: `unknown` if the cloud did not answer, which is never treated as `gone`.
        evidence: the cloud's answer, verbatim.
        poll_after: seconds until the next call, as in `Waiting`.
        details: what `tpux show` adds (node states, health).
        lost: with `preempted`, `maintenance` and `gone`: the slices that it concerns; all of them if empty.
            The program on the others can still save its work; then all machines are released and requested again.
        confirmed: with these three: the machines cannot come back. Otherwise a loss counts only once no worker answers
            on which the program runs, or the answer has been the same for `watch.verdict_grace`.
        workers: the workers as the cloud describes them now, if the request has `describe_workers`: a rebuilt VM has
            another host key. None if that is unknown.
        hint: what the user must do before the allocator can answer, as in `Waiting`.
        wanted_by: who waits for these machines, for people, if the request is `shared`: they are released then.
    """

    state: MachineState
    evidence: str = ""
    poll_after: float = 30.0
    details: Mapping[str, str] = field(default_factory=dict)
    lost: Sequence[int] = ()
    confirmed: bool = False
    workers: Sequence[Worker] | None = None
    hint: str = ""
    wanted_by: str = ""


@dataclass(frozen=True)
class Inspection:
    """The allocator's last answer about the machines.

    Attributes:
        status: its answer; `unknown` where it raised an error.
        failure: the failure that the answer stands for, if any; an unknown answer is none.
        undecided: the answer is unknown, and has been for less than `watch.lost_after`: ask again.
        plugin_error: what the allocator's plugin did wrong; "" if it answered.
    """

    status: MachineStatus
    failure: Failure | None = None
    undecided: bool = False
    plugin_error: str = ""
