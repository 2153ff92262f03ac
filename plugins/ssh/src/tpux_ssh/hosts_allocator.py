"""Allocator `hosts`: machines that already exist, reached over SSH."""

from __future__ import annotations

import _thread
import socket
from collections.abc import Mapping
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Annotated, ClassVar, cast

from pydantic import AfterValidator, Field, field_validator, model_validator

from tpux import (
    Allocation,
    Denied,
    Failure,
    Finding,
    Job,
    JsonValue,
    MachineStatus,
    ProvisionRequest,
    Ready,
    Released,
    Section,
    TpuSection,
    Waiting,
    Worker,
    hookimpl,
)
from tpux.api import machines
from tpux_ssh.address import PORT, parse_address
from tpux_ssh.section import section_of

PROBE_TIMEOUT = 3.0
"""Seconds to wait for a TCP connection to a machine in `inspect`."""


def _address(address: str) -> str:
    parse_address(address)
    return address


class HostsSection(Section):
    """Existing machines; `hosts: [10.0.0.1, me@10.0.0.2:2222]` is short for `addresses`."""

    addresses: list[Annotated[str, AfterValidator(_address)]] = Field(min_length=1)
    """The machines, each as [user@]host[:port]; the first is worker 0."""
    shared: bool = False
    """Use the machines even while another job uses them; by default a job waits until they are free."""

    @model_validator(mode="before")
    @classmethod
    def _accept_list(cls, data: object) -> object:
        return {"addresses": data} if isinstance(data, list) else data

    @field_validator("addresses")
    @classmethod
    def _reject_duplicates(cls, addresses: list[str]) -> list[str]:
        seen: dict[str, str] = {}
        for address in addresses:
            machine = host_and_port(address)
            if machine in seen:
                raise ValueError(f"{address} is the same machine as {seen[machine]}: list it once")
            seen[machine] = address
        return addresses


class HostsTpuSection(TpuSection):
    """The machines of the section `hosts`."""

    transport: ClassVar[str] = "ssh"
    transferable: ClassVar[bool] = True

    def durable_paths(self) -> list[str]:
        """Return all paths: the machines are kept."""
        return ["/", "~"]


def host_and_port(address: str) -> str:
    """Return `host:port`, which identifies a machine across jobs regardless of the login user."""
    _, host, port = parse_address(address)
    return f"{host}:{port or PORT}"


@hookimpl
def config_section() -> type[Section]:
    """Return the model of the section `hosts`."""
    return HostsSection


@hookimpl
def tpu_section() -> type[TpuSection]:
    """Return the model of the section `tpu`."""
    return HostsTpuSection


@hookimpl
def resolve(job: Job) -> dict[str, JsonValue]:
    """Return the address of the jump host, for `inspect`: the machines cannot be reached from here."""
    jump = section_of(job).jump
    return {"jump": host_and_port(jump)} if jump else {}


@hookimpl
def preflight(job: Job) -> list[Finding]:
    """Check that the number of machines matches the config."""
    section = job.section("hosts", HostsSection)
    if section is None:
        return [Finding("error", "the section hosts is missing", hint="add hosts: [10.0.0.1, ...]")]
    count, slices = len(section.addresses), job.tpu.node_count
    if count % slices:
        message = f"{count} hosts cannot be divided into {slices} slices of equal size"
        return [Finding("error", message, where="tpu.node_count")]
    return []


@hookimpl
def provision(request: ProvisionRequest) -> Ready | Waiting | Denied:
    """Acquire the leases of all machines, or of none while another job uses one of them."""
    section = request.section
    if not isinstance(section, HostsSection) or len(section.addresses) % request.tpu.node_count:
        return Denied(Failure("config", evidence="the hosts cannot be divided into slices of equal size"))
    leased = {} if section.shared else {_lease_name(one): one for one in map(host_and_port, section.addresses)}
    for lease, holder in sorted(machines.acquire_all(leased, request.labels, request.previous_owners).items()):
        by = f"in use by job {holder} (tpux stop {holder} --release frees it)"
        why = f"{leased[lease]} is {'held by another user' if holder == machines.HOLD else by}"
        return Waiting(why, poll_after=5.0)
    size = len(section.addresses) // request.tpu.node_count
    workers = tuple(_worker(index, index // size, address) for index, address in enumerate(section.addresses))
    return Ready(Allocation(request.name, "ssh", workers, request.tpu.node_count, borrowed=True, costs=False))


@hookimpl
def inspect(request: ProvisionRequest) -> MachineStatus:
    """Report `ready` if a machine, or the jump host, accepts a connection, else `unknown`: the network may be down."""
    jump = request.resolved.get("jump")
    addresses = [str(jump)] if jump else cast("HostsSection", request.section).addresses
    left, answers, errors = iter(addresses), SimpleQueue[str](), list[str]()

    def probe() -> None:
        for address in left:  # which all probes share
            answers.put(_connect_error(address))

    with suppress(RuntimeError, MemoryError):  # the system has no thread left
        for _ in range(min(16, len(addresses))):
            _thread.start_new_thread(probe, ())
    with suppress(Empty):  # the other workers do not wait for those that are silent
        while len(errors) < len(addresses):
            if not (error := answers.get(timeout=2 * PROBE_TIMEOUT)):
                return MachineStatus("ready")
            errors.append(error)
    if not errors:
        return MachineStatus("unknown", evidence="no probe of a host has returned")
    which = "the jump host does not respond" if jump else f"none of {len(errors)} hosts responds"
    return MachineStatus("unknown", evidence=f"{which}: {errors[0]}")


@hookimpl
def release(request: ProvisionRequest) -> Released:
    """Release the leases. Core has already ended the job's processes."""
    section = request.section
    for machine in map(host_and_port, section.addresses) if isinstance(section, HostsSection) else ():
        machines.release(_lease_name(machine), request.labels)
    return Released()


def _worker(index: int, slice_index: int, address: str) -> Worker:
    user, host, port = parse_address(address)
    details: Mapping[str, str] = {name: value for name, value in (("user", user), ("port", str(port or ""))) if value}
    return Worker(index, slice=slice_index, address=host, internal_ip=host, details=details)


def _connect_error(address: str) -> str:
    """Try to connect to a machine. Returns the error message, or '' if it accepts connections."""
    _, host, port = parse_address(address)
    try:
        socket.create_connection((host, port or PORT), PROBE_TIMEOUT).close()
    except OSError as error:
        return f"{host_and_port(address)}: {error.strerror or error}"
    return ""


def _lease_name(machine: str) -> str:
    return f"host {machine}"
