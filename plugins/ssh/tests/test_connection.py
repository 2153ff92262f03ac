"""Each way in which a worker cannot be reached, or is not to be trusted, in plain words and in time."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from ssh_servers import Server, free_port
from ssh_support import MakeServer, make_job, worker_at

from tpux import HostUnreachableError, Job, Worker
from tpux.fanout import fanout
from tpux_ssh.connection import _connection
from tpux_ssh.host import SshHost
from tpux_ssh.keyfiles import make_key, own_key, public_line
from tpux_ssh.login import Login
from tpux_ssh.pins import HostKeyChangedError, directory
from tpux_ssh.section import SshSection
from tpux_ssh.target import Target


@pytest.fixture
def mute() -> Iterator[int]:
    """A port that takes connections and never speaks."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen(200)
        yield sock.getsockname()[1]


def why_not(worker: Worker, job: Job) -> str:
    with pytest.raises(HostUnreachableError) as caught:
        SshHost(worker, job).open()
    return str(caught.value)


def test_a_worker_that_refuses(job: Job) -> None:
    assert "connection refused" in why_not(Worker(7, address=f"127.0.0.1:{free_port()}"), job)


def test_a_worker_whose_name_nobody_knows(job: Job) -> None:
    assert "no machine of that name" in why_not(Worker(0, address="no-such-host.invalid"), job)


def test_a_worker_that_hangs_after_connecting(mute: int, tmp_path: Path) -> None:
    job = make_job(tmp_path / "job", ssh=SshSection(connect_timeout=2))
    began = time.monotonic()
    assert "said nothing for 2 s" in why_not(Worker(7, address="127.0.0.1", details={"port": str(mute)}), job)
    assert time.monotonic() - began < 60


def test_a_worker_that_hangs_holds_up_neither_the_others_nor_the_end(mute: int, store: Path) -> None:
    """paramiko leaves timers behind that would keep the process alive."""
    code = f"""
import sys; sys.path.insert(0, {str(Path(__file__).parent / "support")!r})
from pathlib import Path
from ssh_support import make_job
from tpux import Worker, HostUnreachableError
from tpux_ssh.connection import _connection
from tpux_ssh.host import SshHost
from tpux_ssh.section import SshSection
from tpux_ssh.target import Target
job = make_job(Path({str(store)!r}) / "job", ssh=SshSection(connect_timeout=0.5))
try: SshHost(Worker(0, address="127.0.0.1:{mute}"), job).open()
except HostUnreachableError as error: print(error)
import time; print(time.monotonic())
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    ended = time.monotonic()
    assert "said nothing for 0.5 s" in result.stdout
    assert result.stderr == ""
    assert ended - float(result.stdout.split()[-1]) < 8


def test_a_key_that_is_refused_says_how_to_let_it_in(make_server: MakeServer, job: Job, tmp_path: Path) -> None:
    server = make_server(lets_in=[public_line(make_key(tmp_path / "other", "other"))])
    why = why_not(worker_at(server), job)
    assert "it takes none of the keys" in why
    assert f"ssh-copy-id -f -i {own_key()}.pub -p {server.port}" in why


def test_the_key_of_the_config_is_tried_too(make_server: MakeServer, tmp_path: Path) -> None:
    mine = tmp_path / "rsa"
    subprocess.run(["ssh-keygen", "-q", "-t", "rsa", "-b", "2048", "-N", "", "-f", mine], check=True)
    server = make_server(lets_in=[public_line(mine)])
    job = make_job(tmp_path / "job", ssh=SshSection(private_key=mine))
    host = SshHost(worker_at(server), job)
    assert host.run("echo in").text == "in"
    host.close()


def test_the_first_host_key_is_kept_with_the_job(server: Server, host: SshHost, job: Job) -> None:
    host.open()
    (pinned,) = directory(job).iterdir()
    assert pinned.read_text() == f"[{server.address}]:{server.port} {server.host_key}\n"
    assert stat.S_IMODE(pinned.stat().st_mode) == 0o600
    assert stat.S_IMODE(pinned.parent.stat().st_mode) == 0o700


def test_a_host_key_that_has_changed(server: Server, host: SshHost, job: Job) -> None:
    host.open()
    host.close()
    server.stop()
    server.new_host_key()
    server.start()
    with pytest.raises(HostKeyChangedError) as caught:
        host.open()
    assert "has changed" in str(caught.value)
    assert "tpux ssh 000001 --worker 0 --forget-host-key" in str(caught.value)
    with pytest.raises(HostUnreachableError):  # it stays refused
        host.run("true")


def test_the_allocators_word_counts_more_than_what_was_seen(server: Server, make_server: MakeServer, job: Job) -> None:
    other = make_server()
    rsa = tmp_rsa(server)
    host = SshHost(worker_at(server, host_keys=f"ssh-rsa {rsa}\n{server.host_key} root@vm\n"), job)
    assert host.run("echo in").text == "in"
    host.close()
    assert not directory(job).exists()
    why = why_not(worker_at(server, host_keys=other.host_key), job)
    assert "another machine, or somebody is in between" in why


def tmp_rsa(server: Server) -> str:
    path = server.directory / "rsa"
    subprocess.run(["ssh-keygen", "-q", "-t", "rsa", "-b", "2048", "-N", "", "-f", path], check=True)
    return path.with_name("rsa.pub").read_text().split()[1]


@pytest.mark.timeout(400)
def test_one_of_64_that_cannot_be_reached_is_named(make_server: MakeServer, job: Job) -> None:
    server, dead = make_server("0.0.0.0"), free_port()
    workers = {i: Worker(i, address=f"127.0.5.{i + 1}:{dead if i == 40 else server.port}") for i in range(64)}

    def true(index: int, worker: Worker) -> bytes:
        host = SshHost(worker, job)
        try:
            return host.run(f"echo {index}").output
        finally:
            host.close()

    answers = fanout(workers, true)
    error = answers.pop(40)
    assert isinstance(error, HostUnreachableError)
    assert str(error) == f"worker 40: root@127.0.5.41:{dead}: connection refused: no ssh server listens there"
    assert answers == {i: f"{i}\n".encode() for i in range(64) if i != 40}


def test_a_session_that_is_killed_is_out_of_reach_and_can_be_opened_again(server: Server, host: SshHost) -> None:
    host.run("true")

    def kill() -> None:
        while not (server.home / "begun").exists():
            time.sleep(0.05)
        for pid in server.sessions():
            os.kill(pid, 9)

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    with pytest.raises(HostUnreachableError, match="the connection broke"):
        host.run("touch begun; sleep 100", timeout=90)  # after which it would be "no answer"
    assert host.run("echo again").text == "again"


def test_a_server_that_hangs_up_while_many_log_in_is_tried_again(make_server: MakeServer, job: Job) -> None:
    server = make_server("0.0.0.0", extra="MaxStartups 2:60:8")
    workers = {i: Worker(i, address=f"127.0.6.{i + 1}:{server.port}") for i in range(12)}
    hosts = {i: SshHost(worker, job) for i, worker in workers.items()}
    answers = fanout(hosts, lambda _, host: host.run("true").ok)
    assert list(answers.values()).count(True) >= 8, answers
    assert all(answer is True or "connection broke while logging in" in str(answer) for answer in answers.values())
    for host in hosts.values():
        host.close()


@pytest.fixture
def often() -> Iterator[None]:
    """Threads take turns much more often than they do."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


def test_connections_that_are_made_at_once_do_not_disturb_each_other(often: None) -> None:
    """A fabric.Config that they shared was seen empty while another connection wrote to it."""
    target = Target("127.0.0.1", 1, "me")

    def make(index: int, sock: socket.socket) -> bool:
        return _connection(sock, target, Login("me", []), 1).port == 1

    with socket.socket() as sock:
        assert all(answer is True for answer in fanout(dict.fromkeys(range(600), sock), make).values())


def test_tpuxs_own_key_is_made_once_whoever_comes_first(store: Path) -> None:
    paths = fanout(dict.fromkeys(range(16)), lambda _, __: public_line(own_key()))
    assert len(set(paths.values())) == 1
    assert stat.S_IMODE((store / "ssh" / "id_ed25519").stat().st_mode) == 0o600
    assert sorted(path.name for path in (store / "ssh").iterdir()) == ["id_ed25519", "id_ed25519.pub"]


def test_an_idle_connection_costs_nothing_and_ends_at_once(server: Server, host: SshHost) -> None:
    host.run("true")

    def cost() -> float:
        before = time.process_time()
        time.sleep(1)
        return time.process_time() - before

    assert any(cost() < 0.02 for _ in range(5)), "whatever else this process does for a moment"
    began = time.monotonic()
    host.close()
    assert time.monotonic() - began < 5
    assert not [thread for thread in threading.enumerate() if "Transport" in type(thread).__name__]
