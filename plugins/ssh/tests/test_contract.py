"""The plugins keep their contracts: the transport and the module on a real sshd, the allocator on its addresses."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from ssh_servers import free_port
from ssh_support import MakeServer, make_job, worker_at

from tpux_ssh.host import SshHost
from tpux_ssh.section import SshSection
from tpux_testing import (
    CommandLine,
    allocator_contract,
    command_contract,
    hooks_contract,
    listener_contract,
    module_contract,
    section_contract,
    transport_contract,
    worker,
)


def test_hooks_and_sections() -> None:
    for word in ("ssh", "hosts"):
        hooks_contract(word)
    section_contract("ssh")
    section_contract("hosts", {"addresses": ["10.0.0.1"]})


def test_listener() -> None:
    listener_contract("ssh", {"ssh": {"port": 2222}})


def test_transport(make_server: MakeServer, tmp_path: Path) -> None:
    key = tmp_path / "key"
    server = make_server(authorized_keys=[_new_key(key)])
    config = {"ssh": {"private_key": str(key), "connect_timeout": 60}}
    nowhere = worker(address=f"127.0.0.1:{free_port()}")
    transport_contract("ssh", worker_at(server), config, unreachable=nowhere)


def test_module(make_server: MakeServer, tmp_path: Path) -> None:
    _new_key(tmp_path / "identity")
    job = make_job(tmp_path / "job", ssh=SshSection(connect_timeout=60))
    hosts: list[SshHost] = []

    def new_host() -> SshHost:
        hosts.append(SshHost(worker_at(make_server()), job))
        return hosts[-1]

    entry = "Host github.com\n  IdentityFile ~/.ssh/identity\n"
    pair = {"private_key": str(tmp_path / "identity"), "public_key": str(tmp_path / "identity.pub")}
    config = {"identities": [{**pair, "config_entry": entry}], "between_workers": True}
    module_contract("ssh", config, new_host=new_host)
    for host in hosts:
        host.close()


def test_allocator_of_existing_machines(make_server: MakeServer) -> None:
    server = make_server()
    allocator_contract("hosts", {"hosts": [f"{server.address}:{server.port}"]})


def _new_key(path: Path) -> str:
    """Create a key pair, and return the public key."""
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(path)], check=True)
    return " ".join(path.with_suffix(".pub").read_text().split()[:2])


@pytest.mark.system
def test_commands(tpux_cli: CommandLine) -> None:
    local = tpux_cli.run_job(keep=True)  # its workers cannot be logged into
    for command in ("ssh", "ssh-config", "tunnel"):
        command_contract(command, wrong=[["77"], [local], []], cli=tpux_cli)
