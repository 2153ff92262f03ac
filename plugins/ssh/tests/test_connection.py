"""Every cause of a failed connection has its own error message, and no failure blocks for long."""

from __future__ import annotations

import os
import signal
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
from tpux.remote.fanout import fanout
from tpux_ssh.authentication import KeyAuth
from tpux_ssh.host import SshHost
from tpux_ssh.host_keys import HostKeyChangedError, host_keys_dir
from tpux_ssh.keyfiles import make_key, own_key, public_line
from tpux_ssh.login import HANDSHAKE_SLOTS, SLOTS_OF_A_JOB, _connection, _slots_of
from tpux_ssh.section import SshSection
from tpux_ssh.target import Target


@pytest.fixture
def silent_port() -> Iterator[int]:
    """Return a port that accepts connections and never sends anything."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen(200)
        yield sock.getsockname()[1]


def connect_error(worker: Worker, job: Job) -> str:
    with pytest.raises(HostUnreachableError) as caught:
        SshHost(worker, job).open()
    return str(caught.value)


def test_connection_refused(job: Job) -> None:
    assert "connection refused" in connect_error(Worker(7, address=f"127.0.0.1:{free_port()}"), job)


def test_unknown_host_name(job: Job) -> None:
    assert "host name not found" in connect_error(Worker(0, address="no-such-host.invalid"), job)


def test_server_that_does_not_respond_after_connecting(silent_port: int, tmp_path: Path) -> None:
    job = make_job(tmp_path / "job", ssh=SshSection(connect_timeout=2))
    worker = Worker(7, address="127.0.0.1", details={"port": str(silent_port)})
    began = time.monotonic()
    assert "did not respond for 2 s" in connect_error(worker, job)
    assert time.monotonic() - began < 60


def test_unresponsive_server_does_not_delay_process_exit(silent_port: int, store: Path) -> None:
    """paramiko's timer threads would keep the process alive."""
    code = f"""
import sys; sys.path.insert(0, {str(Path(__file__).parent / "support")!r})
from pathlib import Path
from ssh_support import make_job
from tpux import Worker, HostUnreachableError
from tpux_ssh.host import SshHost
from tpux_ssh.section import SshSection
job = make_job(Path({str(store)!r}) / "job", ssh=SshSection(connect_timeout=0.5))
try: SshHost(Worker(0, address="127.0.0.1:{silent_port}"), job).open()
except HostUnreachableError as error: print(error)
import time; print(time.monotonic())
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    ended = time.monotonic()
    assert "did not respond for 0.5 s" in result.stdout
    assert result.stderr == ""
    assert ended - float(result.stdout.split()[-1]) < 8


def test_rejected_keys_hint_at_ssh_copy_id(make_server: MakeServer, job: Job, tmp_path: Path) -> None:
    server = make_server(authorized_keys=[public_line(make_key(tmp_path / "other", "other"))])
    error = connect_error(worker_at(server), job)
    assert "the server rejected the keys" in error
    assert f"ssh-copy-id -f -i {own_key()}.pub -p {server.port}" in error


def test_the_configured_key_is_tried(make_server: MakeServer, tmp_path: Path) -> None:
    mine = tmp_path / "rsa"
    subprocess.run(["ssh-keygen", "-q", "-t", "rsa", "-b", "2048", "-N", "", "-f", mine], check=True)
    server = make_server(authorized_keys=[public_line(mine)])
    job = make_job(tmp_path / "job", ssh=SshSection(private_key=mine))
    host = SshHost(worker_at(server), job)
    assert host.run("echo in").text == "in"
    host.close()


def test_the_first_host_key_is_stored_with_the_job(server: Server, host: SshHost, job: Job) -> None:
    host.open()
    (stored,) = host_keys_dir(job).iterdir()
    assert stored.read_text() == f"[{server.address}]:{server.port} {server.host_key}\n"
    assert stat.S_IMODE(stored.stat().st_mode) == 0o600
    assert stat.S_IMODE(stored.parent.stat().st_mode) == 0o700


def test_a_connection_that_ended_between_two_calls_is_opened_anew(server: Server, host: SshHost) -> None:
    """Nothing was sent yet, so nothing can run twice."""
    host.open()
    host.run("true")
    assert host._connection
    transport = host._connection.transport
    for session in server.sessions():
        os.kill(session, signal.SIGKILL)
    transport.join(20)
    assert host.run("echo again").text == "again"


def test_a_changed_host_key_is_rejected(server: Server, host: SshHost, job: Job) -> None:
    host.open()
    host.close()
    server.stop()
    server.new_host_key()
    server.start()
    with pytest.raises(HostKeyChangedError) as caught:
        host.open()
    assert "has changed" in str(caught.value)
    assert "tpux ssh 1 --worker 0 --forget-host-key" in str(caught.value)
    with pytest.raises(HostUnreachableError):  # and again at the next attempt
        host.run("true")


def test_host_keys_from_the_allocator_override_learned_ones(server: Server, make_server: MakeServer, job: Job) -> None:
    other = make_server()
    rsa = tmp_rsa(server)
    host = SshHost(worker_at(server, host_keys=f"ssh-rsa {rsa}\n{server.host_key} root@vm\n"), job)
    assert host.run("echo in").text == "in"
    host.close()
    assert not host_keys_dir(job).exists()
    error = connect_error(worker_at(server, host_keys=other.host_key), job)
    assert "a different machine, or an interception" in error


def tmp_rsa(server: Server) -> str:
    path = server.directory / "rsa"
    subprocess.run(["ssh-keygen", "-q", "-t", "rsa", "-b", "2048", "-N", "", "-f", path], check=True)
    return path.with_name("rsa.pub").read_text().split()[1]


@pytest.mark.timeout(400)
def test_the_unreachable_one_of_64_workers_is_named(make_server: MakeServer, job: Job) -> None:
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
    assert str(error) == f"worker 40: root@127.0.5.41:{dead}: connection refused: no SSH server is listening"
    assert answers == {i: f"{i}\n".encode() for i in range(64) if i != 40}


def test_a_killed_session_raises_and_can_be_reopened(server: Server, host: SshHost) -> None:
    host.run("true")

    def kill() -> None:
        while not (server.home / "begun").exists():
            time.sleep(0.05)
        for pid in server.sessions():
            os.kill(pid, 9)

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    with pytest.raises(HostUnreachableError, match="connection lost"):
        host.run("touch begun; sleep 100", timeout=90)  # a timeout would say "no response"
    assert host.run("echo again").text == "again"


def test_logins_dropped_by_max_startups_are_retried(make_server: MakeServer, job: Job) -> None:
    server = make_server("0.0.0.0", extra="MaxStartups 2:60:8")
    workers = {i: Worker(i, address=f"127.0.6.{i + 1}:{server.port}") for i in range(12)}
    hosts = {i: SshHost(worker, job) for i, worker in workers.items()}
    answers = fanout(hosts, lambda _, host: host.run("true").ok)
    assert list(answers.values()).count(True) >= 8, answers
    assert all(answer is True or "connection lost during login" in str(answer) for answer in answers.values())
    for host in hosts.values():
        host.close()


@pytest.fixture
def frequent_switches() -> Iterator[None]:
    """Make the interpreter switch threads much more often."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


def test_concurrent_connections_share_no_config(frequent_switches: None) -> None:
    """A shared fabric.Config was read as empty while another connection modified it."""
    target = Target("127.0.0.1", 1, "me")

    def make(index: int, sock: socket.socket) -> bool:
        return _connection(sock, target, KeyAuth("me", []), 1).port == 1

    with socket.socket() as sock:
        assert all(answer is True for answer in fanout(dict.fromkeys(range(600), sock), make).values())


def test_concurrent_calls_create_one_key(store: Path) -> None:
    paths = fanout(dict.fromkeys(range(16)), lambda _, __: public_line(own_key()))
    assert len(set(paths.values())) == 1
    assert stat.S_IMODE((store / "ssh" / "id_ed25519").stat().st_mode) == 0o600
    assert sorted(path.name for path in (store / "ssh").iterdir()) == ["id_ed25519", "id_ed25519.pub"]


def test_an_idle_connection_uses_no_cpu_and_closes_at_once(server: Server, host: SshHost) -> None:
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


def test_silent_machines_of_one_job_do_not_delay_the_login_of_another(server: Server, tmp_path: Path) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(200)
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        job = make_job(tmp_path / "silent", ssh=SshSection(connect_timeout=100))
        errors: list[str] = []
        threads = [
            threading.Thread(target=lambda n=n: errors.append(connect_error(Worker(n, address=address), job)))
            for n in range(64)
        ]
        for thread in threads:
            thread.start()
        accepted = [silent.accept()[0] for _ in threads]
        host = SshHost(worker_at(server), make_job(tmp_path / "other", ssh=SshSection(connect_timeout=60)))
        assert host.run("echo in").text == "in"
        host.close()
        assert errors == [], "all of them still wait"
        for sock in accepted:
            sock.close()
        silent.close()
        for thread in threads:
            thread.join(60)


def test_one_job_takes_at_most_half_of_the_login_slots(job: Job, tmp_path: Path) -> None:
    assert _slots_of(job.key) is (mine := _slots_of(job.key))
    assert _slots_of("another") is not mine
    assert mine._value == SLOTS_OF_A_JOB == HANDSHAKE_SLOTS._value // 2


def test_a_worker_that_stops_sending_fails_the_poll(
    server: Server, host: SshHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tpux_worker_tools.relay.POLL_TIMEOUT", 1.0)
    host.put(b"text", "file")
    assert host.read(("file", 0)) == [b"text"]
    for pid in server.sessions():
        os.kill(pid, 19)
    with pytest.raises(HostUnreachableError, match="no response within 1 s"):
        host.read(("file", 0))


def test_the_connection_is_opened_before_the_libraries_for_the_login_are_imported():
    """They take 0.1 s, in which the server begins to answer."""
    modules = "tpux_ssh.host, tpux_ssh.connection, tpux_ssh.routes"
    code = f"import sys, {modules}; print({{'fabric', 'paramiko'}} & {{*sys.modules}})"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "set()\n"
