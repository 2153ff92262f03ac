"""The allocator `hosts`: machines that one already has, reached over ssh."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Annotated, cast

from pydantic import AfterValidator, Field, field_validator, model_validator

from tpux import (
    Allocation,
    Denied,
    Failure,
    Finding,
    Job,
    Machines,
    Ready,
    Released,
    Request,
    Section,
    Waiting,
    Worker,
    claim,
    hookimpl,
    unclaim,
)
from tpux_ssh.target import PORT, parse_address

PROBE_TIMEOUT = 3.0
"""Seconds that a machine may take to answer when it is looked at."""


def _address(address: str) -> str:
    parse_address(address)
    return address


class HostsSection(Section):
    """Machines that you already have; `hosts: [10.0.0.1, me@10.0.0.2:2222]` is short for `addresses`."""

    addresses: list[Annotated[str, AfterValidator(_address)]] = Field(min_length=1)
    """The machines, each as [user@]host[:port]; the first is worker 0."""
    shared: bool = False
    """Use them although another job does; otherwise a job waits until they are free."""

    @model_validator(mode="before")
    @classmethod
    def _accept_list(cls, data: object) -> object:
        return {"addresses": data} if isinstance(data, list) else data

    @field_validator("addresses")
    @classmethod
    def _reject_duplicates(cls, addresses: list[str]) -> list[str]:
        seen: dict[str, str] = {}
        for address in addresses:
            machine = machine_id(address)
            if machine in seen:
                raise ValueError(f"{address} is the same machine as {seen[machine]}: name it once")
            seen[machine] = address
        return addresses


def machine_id(address: str) -> str:
    """What a machine is called among all jobs: its address and its port, whoever logs in."""
    _, host, port = parse_address(address)
    return f"{host}:{port or PORT}"


@hookimpl
def config_section() -> type[Section]:
    """The section `hosts`."""
    return HostsSection


@hookimpl
def preflight(job: Job) -> list[Finding]:
    """Whether there are as many machines as the config says."""
    section = job.section("hosts", HostsSection)
    if section is None:
        return [Finding("error", "there is no section hosts", hint="write hosts: [10.0.0.1, ...]")]
    count, wanted, slices = len(section.addresses), job.job.worker_num, job.tpu.node_count
    if wanted not in {None, count}:
        return [Finding("error", f"job.worker_num is {wanted}, and hosts names {count}", where="job.worker_num")]
    if count % slices:
        return [Finding("error", f"{count} hosts do not make {slices} slices of one size", where="tpu.node_count")]
    return []


@hookimpl
def provision(request: Request) -> Ready | Waiting | Denied:
    """Claim the machines, one after another."""
    section = request.section
    if not isinstance(section, HostsSection) or len(section.addresses) % request.tpu.node_count:
        return Denied(Failure("config", evidence="the section hosts does not name machines for each slice"))
    # In one order for all jobs: two that want the same machines never wait for each other.
    for machine in [] if section.shared else sorted(map(machine_id, section.addresses)):
        if holder := claim(_lease_name(machine), request.labels):
            return Waiting(f"{machine} is in use by job {holder} (tpux stop {holder} --release frees it)", 5.0)
    size = len(section.addresses) // request.tpu.node_count
    workers = tuple(_worker(index, index // size, address) for index, address in enumerate(section.addresses))
    return Ready(Allocation(request.name, "ssh", workers, request.tpu.node_count, borrowed=True, costs=False))


@hookimpl
def inspect(request: Request) -> Machines:
    """Ready where at least one answers: where none does, the network may be down as well as they."""
    section = cast("HostsSection", request.section)
    with ThreadPoolExecutor(min(16, len(section.addresses))) as pool:
        looks = [pool.submit(_probe, address) for address in section.addresses]
        errors = []
        for look in as_completed(looks):
            if not (error := look.result()):
                for other in looks:
                    other.cancel()
                return Machines("ready")
            errors.append(error)
    return Machines("unknown", evidence=f"none of {len(errors)} hosts answers: {errors[0]}")


@hookimpl
def release(request: Request) -> Released:
    """Let others have the machines; what runs there was ended before."""
    section = request.section
    for machine in map(machine_id, section.addresses) if isinstance(section, HostsSection) else ():
        unclaim(_lease_name(machine), request.labels)
    return Released()


def _worker(index: int, part: int, address: str) -> Worker:
    user, host, port = parse_address(address)
    details: Mapping[str, str] = {name: value for name, value in (("user", user), ("port", str(port or ""))) if value}
    return Worker(index, slice=part, address=host, internal_ip=host, details=details)


def _probe(address: str) -> str:
    """Why a machine does not answer, empty where it does."""
    _, host, port = parse_address(address)
    try:
        socket.create_connection((host, port or PORT), PROBE_TIMEOUT).close()
    except OSError as error:
        return f"{machine_id(address)}: {error.strerror or error}"
    return ""


def _lease_name(machine: str) -> str:
    return f"host {machine}"
