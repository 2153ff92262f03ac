"""Workers that are reached through a jump host, and through a program that forwards the connection."""

from __future__ import annotations

import json
import os
import socket
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import ValidationError
from ssh_servers import Server, free_port
from ssh_support import MakeServer, Tpux, make_job, worker_at

from tpux import HostIdentityError, HostUnreachableError, Job, UsageError, Worker
from tpux.remote.fanout import fanout
from tpux_ssh.host import SshHost
from tpux_ssh.section import SshSection

# Connects its standard input and output to the address in the name of the "instance", as gcloud does to a VM.
GCLOUD = """#!/usr/bin/env python3
import os, socket, sys, threading
with open(os.environ["CLOUDSDK_CONFIG"] + "/calls", "a") as calls:
    print(*sys.argv[1:], file=calls)
instance, port = sys.argv[3:5]
if instance == "missing":
    sys.exit("ERROR: (gcloud.compute.start-iap-tunnel) Error while connecting [4003: 'failed to connect to backend']")
sock = socket.create_connection((instance, int(port)))
def upload():
    while data := os.read(0, 65536):
        sock.sendall(data)
    sock.shutdown(socket.SHUT_WR)
threading.Thread(target=upload, daemon=True).start()
while data := sock.recv(65536):
    os.write(1, data)
"""


@pytest.fixture
def jump(make_server: MakeServer) -> Server:
    """Return an sshd that stands for a jump host."""
    return make_server()


def job_through(jump: Server, directory: Path) -> Job:
    address = f"root@{jump.address}:{jump.port}"
    return make_job(directory / "job", ssh=SshSection(jump=address, connect_timeout=60))


def test_workers_behind_a_jump_host_share_one_connection_to_it(
    jump: Server, make_server: MakeServer, tmp_path: Path
) -> None:
    servers, job = [make_server() for _ in range(3)], job_through(jump, tmp_path)
    hosts = {index: SshHost(worker_at(server, index), job) for index, server in enumerate(servers)}
    answers = fanout(hosts, lambda index, host: host.run(f"echo {index}; head -c 300000 /dev/zero | tr '\\0' x").output)
    assert {index: bytes(answer) for index, answer in answers.items() if not isinstance(answer, Exception)} == {
        index: f"{index}\n".encode() + b"x" * 300000 for index in hosts
    }
    assert len(jump.sessions()) == 1
    assert all(server.sessions() for server in servers)
    hosts[0].close()
    assert hosts[1].run("echo still").text == "still"
    for host in hosts.values():
        host.close()
    _wait(lambda: not jump.sessions())


def test_a_lost_jump_host_is_connected_to_again(jump: Server, server: Server, tmp_path: Path) -> None:
    host = SshHost(worker_at(server), job_through(jump, tmp_path))
    assert host.run("echo before").text == "before"
    jump.stop()
    with pytest.raises(HostUnreachableError):
        host.run("true")
    with pytest.raises(HostUnreachableError, match=f"jump host: root@{jump.address}:{jump.port}: connection refused"):
        host.run("true")
    jump.start()
    assert host.run("echo after").text == "after"
    host.close()


def test_a_jump_host_that_forwards_nothing_is_named(make_server: MakeServer, server: Server, tmp_path: Path) -> None:
    jump = make_server(extra="\nAllowTcpForwarding no")
    with pytest.raises(HostUnreachableError) as caught:
        SshHost(worker_at(server), job_through(jump, tmp_path)).open()
    assert f"jump host root@{jump.address}:{jump.port}: Administratively prohibited" in caught.value.message
    assert "AllowTcpForwarding" in caught.value.hint


def test_a_worker_that_the_jump_host_cannot_reach_is_named(jump: Server, tmp_path: Path) -> None:
    with pytest.raises(HostUnreachableError, match=r"127\.0\.0\.1:\d+: jump host root@.*: Connect failed"):
        SshHost(Worker(0, address=f"127.0.0.1:{free_port()}"), job_through(jump, tmp_path)).open()


def test_the_host_key_of_the_jump_host_is_checked(jump: Server, server: Server, tmp_path: Path) -> None:
    job = job_through(jump, tmp_path)
    host = SshHost(worker_at(server, host_keys=server.host_key), job)
    host.open()
    host.close()
    jump.stop()
    jump.new_host_key()
    jump.start()
    with pytest.raises(HostUnreachableError, match=r"jump host: the host key of .* has changed") as caught:
        host.open()
    assert not isinstance(caught.value, HostIdentityError), "no allocator knows its key"
    assert "--forget-host-key" in caught.value.hint


def test_an_unreachable_jump_host_fails_all_workers_at_once(tmp_path: Path) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(100)
        address = f"root@127.0.0.1:{silent.getsockname()[1]}"
        job = make_job(tmp_path / "job", ssh=SshSection(jump=address, connect_timeout=2))
        gate = threading.Barrier(20)

        def open_host(_: int, worker: Worker) -> None:
            gate.wait(60)
            SshHost(worker, job).open()

        workers = {index: Worker(index, address="127.0.0.1:9") for index in range(20)}
        errors = fanout(workers, open_host)
        silent.settimeout(0)
        logins = 0
        while True:
            try:
                silent.accept()[0].close()
            except BlockingIOError:
                break
            logins += 1
    assert all("did not respond for 2 s" in str(error) for error in errors.values())
    assert logins < 10


@pytest.mark.system
def test_a_job_on_hosts_behind_a_jump_host(jump: Server, make_server: MakeServer, tpux: Tpux, tmp_path: Path) -> None:
    servers = [make_server() for _ in range(2)]
    config = tmp_path / "train.yaml"
    config.write_text(
        "tpu: {allocation_mode: hosts}\n"
        f"hosts: {json.dumps([f'{each.address}:{each.port}' for each in servers])}\n"
        f"ssh: {{jump: 'root@{jump.address}:{jump.port}', between_workers: true}}\n"
        "command: {cmd: 'echo on $TPUX_WORKER; exit 3'}\n"
    )
    done = tpux("run", str(config))
    assert "[0] on 0" in done.stdout
    assert done.returncode == 100, "the machines count as ready, so the exit code counts"
    tpux("rerun", "1", "command.cmd=sleep 1000")
    _wait(lambda: json.loads(tpux("show", "1", "--json").stdout)["state"] == "running")
    through = tpux("ssh", "1", "--worker", "1", "--", "echo in; exit 5")
    assert (through.stdout, through.returncode) == ("in\n", 5), through.stderr
    assert "ProxyJump tpux-1-jump" in tpux("ssh-config", "1").stdout
    forgotten = tpux("ssh", "1", "--forget-host-key", "--", "echo in")
    assert forgotten.stdout == "in\n", forgotten.stderr


@pytest.fixture
def gcloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a stand-in for gcloud on the path; return the directory of its configuration."""
    directory = tmp_path / "gcloud"
    directory.mkdir()
    (directory / "gcloud").write_text(GCLOUD)
    (directory / "gcloud").chmod(0o755)
    monkeypatch.setenv("PATH", f"{directory}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(directory))
    return directory


def test_a_worker_behind_iap(server: Server, tmp_path: Path, gcloud: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = make_job(tmp_path / "job", ssh=SshSection(iap=True, connect_timeout=60))
    monkeypatch.setenv("CLOUDSDK_CONFIG", "/nowhere")  # what `resolve` stored counts
    details = {"instance": server.address, "project": "p", "zone": "us-central2-b", "host_keys": server.host_key}
    worker = replace(worker_at(server, **details), address=f"10.9.8.7:{server.port}")
    host = SshHost(worker, job)
    assert host.run("head -c 300000 /dev/zero | wc -c").text == "300000"
    assert (gcloud / "calls").read_text().split() == [
        "compute", "start-iap-tunnel", server.address, str(server.port), "--listen-on-stdin",
        "--project=p", "--zone=us-central2-b", "--verbosity=warning", "--quiet",
    ]  # fmt: skip
    host.close()
    _wait(lambda: not server.sessions())


def test_the_error_of_gcloud_is_shown(tmp_path: Path, gcloud: Path) -> None:
    del gcloud
    job = make_job(tmp_path / "job", ssh=SshSection(iap=True, connect_timeout=60))
    worker = Worker(0, address="10.9.8.7", details={"instance": "missing", "project": "p", "zone": "z"})
    with pytest.raises(HostUnreachableError, match="4003: 'failed to connect to backend'"):
        SshHost(worker, job).open()


def test_iap_needs_the_name_of_an_instance(tmp_path: Path, gcloud: Path) -> None:
    del gcloud
    job = make_job(tmp_path / "job", ssh=SshSection(iap=True))
    with pytest.raises(HostUnreachableError, match="its allocator provides none"):
        SshHost(Worker(0, address="10.9.8.7"), job).open()


def test_iap_without_gcloud_is_an_error_when_the_job_is_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match=r"ssh\.iap needs gcloud"):
        make_job(tmp_path / "job", ssh=SshSection(iap=True))


@pytest.mark.parametrize("section", [{"jump": "a@b", "iap": True}, {"jump": "-oProxyCommand=x"}, {"jump": "a b"}])
def test_sections_that_are_refused(section: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        SshSection.model_validate(section)


def _wait(condition: object) -> None:
    import time

    deadline = time.monotonic() + 60
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.05)
