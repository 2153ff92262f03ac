"""The allocator `hosts`: validation of the list of machines, and one job per machine."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import ValidationError
from ssh_servers import Server, free_port
from ssh_support import make_job

from tpux import ConfigError, ProvisionRequest, Ready, TpuSection, Waiting, Worker, config
from tpux.model.events import Created
from tpux.plugin.manager import Plugins
from tpux.store import Store
from tpux_ssh import hosts_allocator
from tpux_ssh.hosts_allocator import HostsSection
from tpux_ssh.section import SshSection
from tpux_ssh.target import Target, parse_address, target_of


@pytest.mark.parametrize(
    ("address", "parts"),
    [
        ("10.0.0.1", ("", "10.0.0.1", None)),
        ("me@host.example:2222", ("me", "host.example", 2222)),
        ("::1", ("", "::1", None)),
        ("me@[fe80::1]:22", ("me", "fe80::1", 22)),
        ("[fe80::1]", ("", "fe80::1", None)),
    ],
)
def test_addresses(address: str, parts: tuple[str, str, int | None]) -> None:
    assert parse_address(address) == parts


@pytest.mark.parametrize(
    "address",
    ["", "me@", "host:", "host:0", "host:70000", "host:ssh", "-oProxyCommand=x", "-x@h", "a b", "[::1", "[::1]x"],
)
def test_invalid_addresses(address: str) -> None:
    with pytest.raises(ValueError, match="invalid address"):
        parse_address(address)
    with pytest.raises(ValidationError):
        HostsSection.model_validate([address])


def load(tmp_path: Path, section: str) -> config.Loaded:
    path = tmp_path / "train.yaml"
    path.write_text(f"tpu: {{allocation_mode: hosts}}\ncommand: {{cmd: 'true'}}\nhosts: {section}\n")
    return config.load(path, plugins=Plugins())


def test_a_plain_list_is_short_for_addresses(tmp_path: Path) -> None:
    short, long = load(tmp_path, "[10.0.0.1, me@b:22]"), load(tmp_path, "{addresses: [10.0.0.1, me@b:22]}")
    assert short.sections["hosts"] == long.sections["hosts"]
    resolved = short.resolved(id="000001", user="me")
    assert config.from_resolved(resolved, plugins=Plugins(), secrets={}).sections["hosts"] == long.sections["hosts"]


@pytest.mark.parametrize("twice", ["[a, a]", "[me@a, you@a:22]", "{addresses: [a, b, 'a:22']}"])
def test_a_duplicate_address_is_an_error(tmp_path: Path, twice: str) -> None:
    with pytest.raises(ConfigError, match=r"train\.yaml:3:.* is the same machine as .*a: list it once"):
        load(tmp_path, twice)
    assert load(tmp_path, "['a:2201', 'a:2202']")  # two servers on one address


@pytest.mark.parametrize("wrong", ["[]", "", "[1.5]", "{shared: true}", "[-oProxyCommand=x]"])
def test_invalid_lists_of_machines(tmp_path: Path, wrong: str) -> None:
    with pytest.raises(ConfigError, match=r"train\.yaml:\d"):
        load(tmp_path, wrong)


def test_the_number_of_hosts_must_match_the_slices(tmp_path: Path) -> None:
    job = make_job(
        tmp_path, hosts=HostsSection(addresses=["a", "b", "c"]), tpu=TpuSection(allocation_mode="hosts", node_count=2)
    )
    (finding,) = hosts_allocator.preflight(job)
    assert finding.message == "3 hosts cannot be divided into 2 slices of equal size"


def test_login_target_of_a_worker(tmp_path: Path) -> None:
    job = make_job(tmp_path, ssh=SshSection(port=2200))
    assert target_of(Worker(0, address="a", details={"user": "u"}), job) == Target("a", 2200, "u")
    assert target_of(Worker(0, address="me@a:1", details={"port": "2", "user": "u"}), job) == Target("a", 1, "me")
    assert Target("a", 22, "u").known_hosts_name == "a"
    assert Target("::1", 23, "u").known_hosts_name == "[::1]:23"


@pytest.fixture
def request_of(tmp_path: Path) -> Callable[..., ProvisionRequest]:
    """Return a function that makes a request for a job in the store."""

    def make(job: str, *addresses: str, shared: bool = False, slices: int = 1) -> ProvisionRequest:
        store = Store()
        while job not in store.ids():
            store.create(lambda number: ({}, Created(id=number, user=store.user, name="x")), at=0)
        return ProvisionRequest(
            name=f"x-{job}",
            tpu=TpuSection(allocation_mode="hosts", node_count=slices),
            section=HostsSection(addresses=list(addresses), shared=shared),
            labels={"tpux-store": store.id, "tpux-user": store.user, "tpux-job": job},
            public_keys=(),
            directory=tmp_path,
        )

    return make


def test_allocation_of_a_job(request_of: Callable[..., ProvisionRequest]) -> None:
    answer = hosts_allocator.provision(request_of("000001", "a", "me@b:2222", slices=2))
    assert isinstance(answer, Ready)
    allocation = answer.allocation
    assert (allocation.transport, allocation.slices, allocation.borrowed, allocation.costs) == ("ssh", 2, True, False)
    assert allocation.workers == (
        Worker(0, 0, "a", "a"),
        Worker(1, 1, "b", "b", {"user": "me", "port": "2222"}),
    )


def test_two_jobs_do_not_share_a_machine(request_of: Callable[..., ProvisionRequest]) -> None:
    first, second = request_of("000001", "a", "b"), request_of("000002", "me@b:22", "c")
    assert isinstance(hosts_allocator.provision(first), Ready)
    assert isinstance(hosts_allocator.provision(first), Ready)
    waiting = hosts_allocator.provision(second)
    assert isinstance(waiting, Waiting)
    assert waiting.why == "b:22 is in use by job 000001 (tpux stop 000001 --release frees it)"
    third = request_of("000003", "c")
    assert isinstance(hosts_allocator.provision(third), Ready), "a job that waits holds no machine"
    hosts_allocator.release(third)
    assert isinstance(hosts_allocator.provision(request_of("000002", "b", shared=True)), Ready)
    hosts_allocator.release(first)
    hosts_allocator.release(first)
    assert isinstance(hosts_allocator.provision(second), Ready)
    assert isinstance(hosts_allocator.provision(first), Waiting)


def test_machines_passed_on_to_another_job_are_leased_to_it(request_of: Callable[..., ProvisionRequest]) -> None:
    first, second = request_of("000001", "a"), request_of("000002", "a")
    hosts_allocator.provision(first)
    assert isinstance(hosts_allocator.provision(second), Waiting)
    assert isinstance(hosts_allocator.provision(replace(second, previous_owners=(first.labels,))), Ready)
    hosts_allocator.release(first)
    assert isinstance(hosts_allocator.provision(first), Waiting)


def test_machines_are_ready_while_one_responds(request_of: Callable[..., ProvisionRequest], server: Server) -> None:
    dead = f"127.0.0.1:{free_port()}"
    assert hosts_allocator.inspect(request_of("000001", dead, f"{server.address}:{server.port}")).state == "ready"
    unreachable = hosts_allocator.inspect(request_of("000001", dead))
    assert unreachable.state == "unknown"
    assert unreachable.evidence == f"none of 1 hosts responds: {dead}: Connection refused"


@pytest.fixture
def silent() -> Iterator[str]:
    """Return an address whose packets are dropped: the kernel answers no one while connections wait for `accept`."""
    with socket.socket() as listener, ExitStack() as stack:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        while True:
            waiting = stack.enter_context(socket.socket())
            waiting.settimeout(0.2)
            try:
                waiting.connect(listener.getsockname())
            except TimeoutError:
                break
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def test_a_machine_that_does_not_respond_is_not_waited_for(
    request_of: Callable[..., ProvisionRequest], server: Server, silent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosts_allocator, "PROBE_TIMEOUT", 1000)
    assert hosts_allocator.inspect(request_of("000001", silent, f"{server.address}:{server.port}")).state == "ready"
