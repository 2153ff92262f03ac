"""Whole jobs on four ssh servers, through the command line."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import shlex
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from ssh_servers import Server, free_port
from ssh_support import Tpux, make_job, open_files, servers_in

from tpux import Worker
from tpux_ssh import shell_on
from tpux_ssh.section import SshSection


@dataclass(frozen=True)
class Fleet:
    """Four servers and a store."""

    tpux: Tpux
    servers: list[Server]
    directory: Path

    def config(self, cmd: str, more: str = "") -> str:
        """Write a config that uses the four servers, and return its path."""
        path = self.directory / "train.yaml"
        addresses = [f"{server.address}:{server.port}" for server in self.servers]
        path.write_text(
            f"tpu: {{allocation_mode: hosts}}\nhosts: {json.dumps(addresses)}\n{more}\n"
            f"command: {json.dumps({'cmd': cmd})}\n"
        )
        return str(path)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    directory = tmp_path_factory.mktemp("fleet")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TPUX_HOME", str(directory / "tpux"))
        with servers_in(directory) as make:
            tpux = Tpux(directory / "tpux")
            yield Fleet(tpux, [make() for _ in range(4)], directory)
            tpux.clear()


@pytest.fixture(scope="module")
def job(fleet: Fleet) -> Iterator[str]:
    """Start a job that runs until it is deleted."""
    created = fleet.tpux("create", fleet.config("touch ready; sleep 300"))
    assert created.returncode == 0, created.stderr
    deadline = time.monotonic() + 100
    while not all((server.home / "ready").exists() for server in fleet.servers):
        assert time.monotonic() < deadline, fleet.tpux("show", "1").stdout
        time.sleep(0.05)
    yield created.stdout.strip()
    fleet.tpux("delete", "-y", created.stdout.strip())


def test_workers_log_in_to_each_other_in_a_complete_run(fleet: Fleet, tmp_path: Path) -> None:
    peers = [Worker(number, internal_ip=server.address) for number, server in enumerate(fleet.servers)]
    one = make_job(tmp_path / "other", ssh=SshSection(between_workers=True))
    assert shell_on(peers[0], one) is None, "its modules do not set up the keys"
    shells = [shell_on(peer, replace(one, modules=("ssh",))) or [] for peer in peers]
    each = "; ".join(f"echo 'echo in; exit 3' | {shlex.join(shell)} || [ $? = 3 ]" for shell in shells)
    path = fleet.config(f"{each}; echo $TPUX_WORKER/$TPUX_NUM_WORKERS", "ssh: {between_workers: true}")
    result = fleet.tpux("run", path)
    assert result.returncode == 0, result.stderr
    for worker in range(4):
        lines = [line[4:] for line in result.stdout.splitlines() if line.startswith(f"[{worker}] ")]
        assert lines == ["in"] * 4 + [f"{worker}/4"]


@pytest.mark.timeout(400)
def test_no_output_is_lost_when_sessions_are_killed(fleet: Fleet) -> None:
    lines = "for i in $(seq 1500); do echo line $i; [ $((i % 50)) != 0 ] || sleep 0.1; done"
    path = fleet.config(f"{lines}; until [ -e killed ]; do sleep 0.1; done; printf end")
    job = fleet.tpux("create", path).stdout.strip()
    killed = 0
    while json.loads(fleet.tpux("show", job, "--json").stdout)["state"] not in {"succeeded", "failed"}:
        for pid in [pid for server in fleet.servers for pid in server.sessions()]:
            if killed < 60:  # or on a busy machine no login would ever come to its end
                with contextlib.suppress(ProcessLookupError):  # it may have ended just now
                    os.kill(pid, 9)
                killed += 1
        if killed > 8:
            for server in fleet.servers:
                (server.home / "killed").touch()  # the program may end
        time.sleep(0.3)
    assert killed > 4
    expected = "".join(f"line {i}\n" for i in range(1, 1501)) + "end"
    for worker in range(4):
        assert fleet.tpux("logs", job, "--worker", str(worker)).stdout == expected


@pytest.mark.system
def test_a_worker_whose_disk_is_full_fails_the_set_up_and_is_named(fleet: Fleet) -> None:
    markers = fleet.servers[2].home / ".tpux/ready"
    subprocess.run(["rm", "-rf", str(markers)], check=True)
    markers.parent.mkdir(exist_ok=True)
    markers.touch()  # no file can be created below it, not even by root
    created = fleet.tpux("create", fleet.config("true", "ssh: {between_workers: true}\nsetup: {tries: 2}"))
    job = created.stdout.strip()
    fleet.tpux("wait", job)
    failure = json.loads(fleet.tpux("show", job, "--json").stdout)["failure"]
    assert (failure["kind"], failure["worker"]) == ("setup", 2), failure
    assert failure["evidence"].startswith("ssh: put .tpux/ready/ssh: ")
    [command] = [part for part in failure["hint"].split("; ") if "exec" in part]
    words = shlex.split(command.partition("tpux ")[2])
    shown = fleet.tpux(*words)
    assert "Filesystem" in shown.stdout, "the command of the hint works"
    markers.unlink()
    fleet.tpux("delete", "-y", job)


@pytest.mark.system
def test_a_login_starts_where_the_program_does(fleet: Fleet, tmp_path: Path) -> None:
    """With a terminal and without one; the profile of the user must not hide the environment."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code/a file").touch()
    more = f"code: {tmp_path}/code\nvenv: {{path: own env}}\njob: {{env_type: venv, environment: {{FLAG: it's}}}}"
    held = fleet.tpux("create", fleet.config("pwd; exec sleep 300", more)).stdout.strip()
    deadline = time.monotonic() + 20
    while not (where := (logs := fleet.tpux("logs", held, "--worker", "2")).stdout.strip()):
        assert time.monotonic() < deadline, logs
        time.sleep(0.1)
    home = fleet.servers[2].home
    (home / ".profile").write_text("PATH=/usr/bin:/bin OF_PROFILE=yes; cd /\n")
    login = ("ssh", held, "--worker", "2")
    shown = "pwd; command -v python; ls *' 'file | cat; echo \"$FLAG\" $TPUX_WORKER; exit 7"
    expected = f"{where}\n/root/own env/bin/python\na file\nit's 2\n"
    result = fleet.tpux(*login, "--", "-o", "LogLevel=QUIET", shown)
    assert (result.returncode, result.stdout) == (7, expected), result.stderr
    assert (home / ".tpux/logins").exists()
    assert not list((home / ".tpux/logins").iterdir())

    master, slave = pty.openpty()
    shell = subprocess.Popen(
        [fleet.tpux.program, *login],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env={**os.environ, "TPUX_HOME": str(fleet.tpux.home)},
    )
    os.close(slave)
    os.write(master, f"tty -s && echo T$OF_PROFILE; {shown}\n".encode())
    said = b""
    with contextlib.suppress(OSError):  # the end of the terminal
        while piece := os.read(master, 4096):
            said += piece
    os.close(master)
    assert shell.wait(60) == 7, said
    text = said.decode().replace("\r\n", "\n")
    assert "Tyes\n" + expected in text
    assert f"(job {int(held)}) " in text

    bare = fleet.tpux(*login, "--host", "--", "pwd; echo $FLAG.")
    assert bare.stdout == "/root\n.\n"
    (home / "own env").rename(home / "moved")
    lost = fleet.tpux(*login, "--", "true")
    assert lost.returncode == 127
    assert "--host does without it" in lost.stdout + lost.stderr
    (home / ".profile").unlink()
    fleet.tpux("delete", "-y", held)


class Tunnel:
    """`tpux tunnel` as a process, whose lines are read as they come."""

    def __init__(self, fleet: Fleet, *words: str, files: Sequence[int] = ()) -> None:
        self.process = subprocess.Popen(
            [fleet.tpux.program, "tunnel", *words],
            env={**os.environ, "TPUX_HOME": str(fleet.tpux.home)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            pass_fds=files,
        )

    def until(self, text: str) -> str:
        """Return what it prints up to a line with a text."""
        assert self.process.stdout
        said = ""
        for line in self.process.stdout:
            said += line
            if text in line:
                return said
        raise AssertionError(f"it ended: {said}")

    def end(self, number: int = signal.SIGINT) -> int:
        """Send a signal, and return the exit code."""
        self.process.send_signal(number)
        assert self.process.stdout
        self.process.stdout.read()
        return self.process.wait(60)


@contextlib.contextmanager
def answering(text: str, port: int = 0) -> Iterator[int]:
    """Listen on a port of the workers, which answers each connection with a text."""
    with socket.create_server(("127.0.0.1", port)) as listener:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    with listener.accept()[0] as connection:
                        connection.sendall(text.encode())

        threading.Thread(target=serve, daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)  # wakes the thread


def fetch(port: int) -> str:
    """Return what a port of this machine answers."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        return connection.makefile().read()


@pytest.mark.system
@pytest.mark.parametrize("deleted", [True, False], ids=["deleted", "borrowed"])
def test_a_tunnel_ends_when_its_job_has_released_the_machines(fleet: Fleet, deleted: bool) -> None:
    held = fleet.tpux("create", fleet.config("exec sleep 300")).stdout.strip()
    deadline = time.monotonic() + 100
    while json.loads(fleet.tpux("show", held, "--json").stdout)["state"] != "running":
        assert time.monotonic() < deadline
        time.sleep(0.1)
    tunnel = Tunnel(fleet, held, str(free_port()))
    tunnel.until("->")
    assert fleet.tpux("stop", held, "--release").returncode == 0
    for pid in fleet.servers[0].sessions() if deleted else []:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, 9)
    said = tunnel.until("holds no machines")
    assert f"`tpux resume {int(held)}` requests new ones" in said
    assert tunnel.process.wait(60) == 0
    fleet.tpux("delete", "-y", held)


@pytest.mark.system
def test_exec_runs_on_all_workers_and_exits_with_the_worst_code(fleet: Fleet, job: str) -> None:
    result = fleet.tpux("exec", job, "--", 'echo "$PWD $HOME"; printf last')
    assert result.returncode == 0, result.stderr
    assert sorted(result.stdout.splitlines()) == sorted(
        line for i in range(4) for line in (f"[{i}] /root /root", f"[{i}] last")
    )
    (fleet.servers[2].home / "bad").touch()
    result = fleet.tpux("exec", job, "--workers", "1-2", "--", "test", "!", "-e", "bad")
    assert (result.returncode, result.stdout, result.stderr) == (1, "", "tpux: worker 2 exited with 1\n")
    results = json.loads(fleet.tpux("exec", job, "--json", "--workers", "0,3", "--", "echo", "a  b", "$HOME").stdout)
    assert results == [{"worker": i, "code": 0, "problem": "", "output": "a  b $HOME\n"} for i in (0, 3)]


@pytest.mark.system
def test_exec_names_the_unreachable_worker(fleet: Fleet, job: str) -> None:
    fleet.servers[1].stop()
    result = fleet.tpux("exec", job, "--", "echo here")
    assert result.returncode == 255
    assert sorted(result.stdout.splitlines()) == ["[0] here", "[2] here", "[3] here"]
    assert "tpux: worker 1: root@" in result.stderr
    assert "connection refused" in result.stderr
    fleet.servers[1].start()


@pytest.mark.system
def test_exec_ends_commands_at_the_timeout(fleet: Fleet, job: str) -> None:
    result = fleet.tpux("exec", job, "--timeout", "8s", "--workers", "0", "--", f"echo begun; sleep 77.{os.getpid()}")
    assert (result.returncode, result.stdout) == (124, "[0] begun\n")
    assert "it took longer than 8 s and was ended" in result.stderr
    assert fleet.tpux("exec", job, "--workers", "0", "--", f"pgrep -f '^sleep 77.{os.getpid()}'").returncode == 1


def test_interrupting_exec_ends_its_commands(fleet: Fleet, job: str) -> None:
    words = [fleet.tpux.program, "exec", job, "--workers", "0-1", "--", f"echo begun; sleep 88.{os.getpid()}"]
    with subprocess.Popen(words, env={**os.environ, "TPUX_HOME": str(fleet.tpux.home)}, stdout=subprocess.PIPE) as run:
        assert run.stdout
        assert {run.stdout.readline(), run.stdout.readline()} == {b"[0] begun\n", b"[1] begun\n"}  # streamed
        run.send_signal(signal.SIGINT)
        assert run.wait(60) in {1, 130}
    assert fleet.tpux("exec", job, "--workers", "0", "--", f"pgrep -f '^sleep 88.{os.getpid()}'").returncode == 1


@pytest.mark.system
def test_exec_ends_its_commands_quietly_when_its_stdout_is_closed(fleet: Fleet, job: str) -> None:
    words = [fleet.tpux.program, "exec", job, "--workers", "0-1", "--", f"exec yes 99.{os.getpid()}"]
    env = {**os.environ, "TPUX_HOME": str(fleet.tpux.home)}
    with subprocess.Popen(words, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as run:
        assert run.stdout
        assert run.stderr
        assert run.stdout.readline().endswith(b"] 99.%d\n" % os.getpid())
        run.stdout.close()  # `| head -1`
        assert run.stderr.read() == b""
        assert run.wait(60) == 1
    assert fleet.tpux("exec", job, "--workers", "0-1", "--", f"pgrep -f '^yes 99.{os.getpid()}'").returncode == 1


def test_exec_on_workers_that_do_not_exist(fleet: Fleet, job: str) -> None:
    result = fleet.tpux("exec", job, "--workers", "4", "--", "true")
    assert result.returncode == 2
    assert "has no worker 4" in result.stderr


def test_cp_to_a_path_below_a_file(fleet: Fleet, job: str) -> None:
    (fleet.servers[1].home / "notes.txt").touch()
    done = fleet.tpux("cp", str(fleet.directory / "train.yaml"), f"{job}:notes.txt/copy")
    assert (done.returncode, "copied to worker 0, 2, 3" in done.stderr) == (1, True), done.stderr
    assert "worker 1: notes.txt is not a directory" in done.stderr
    [command] = [line.partition("rename it: tpux ")[2] for line in done.stderr.splitlines() if "rename it" in line]
    assert fleet.tpux(*shlex.split(command)).returncode == 0
    done = fleet.tpux("cp", str(fleet.directory / "train.yaml"), f"{job}:notes.txt/copy", "--worker", "1")
    assert done.returncode == 0, done.stderr


@pytest.mark.system
def test_system_ssh_and_scp_by_name(fleet: Fleet, job: str, tmp_path: Path) -> None:
    result = fleet.tpux("ssh", job, "--worker", "2", "--", "hostname; echo $PWD; exit 4")
    assert (result.returncode, result.stdout.split()[-1]) == (4, "/root")
    blocks = fleet.tpux("ssh-config", job)
    assert blocks.stdout.count(f"Host tpux-{int(job)}-") == 4
    assert "StrictHostKeyChecking yes" in blocks.stdout
    config, source = tmp_path / "ssh_config", tmp_path / "source"
    config.write_text(blocks.stdout)
    source.write_text("copied")
    subprocess.run(["scp", "-q", "-F", config, source, f"tpux-{int(job)}-3:there"], check=True, timeout=60)
    assert (fleet.servers[3].home / "there").read_text() == "copied"


@pytest.mark.system
def test_a_regenerated_host_key_is_accepted_on_request(fleet: Fleet, job: str) -> None:
    fleet.servers[1].stop()
    fleet.servers[1].new_host_key()
    fleet.servers[1].start()
    refused = fleet.tpux("exec", job, "--", "true")
    assert refused.returncode == 255
    assert "the host key of" in refused.stderr
    assert f"tpux ssh {job} --worker 1 --forget-host-key" in refused.stderr
    login = fleet.tpux("ssh", job, "--worker", "1", "--", "true")
    assert (login.returncode, "--worker 1 --forget-host-key" in login.stderr) == (1, True), login.stderr
    login = fleet.tpux("ssh", job, "--worker", "1", "--host", "--", "true")
    assert login.returncode == 255, "OpenSSH rejects it too"
    accepted = fleet.tpux("ssh", job, "--worker", "1", "--forget-host-key", "--", "echo in")
    assert accepted.stdout == "in\n"
    assert fleet.tpux("exec", job, "--", "true").returncode == 0


def test_a_tunnel_outlives_a_lost_connection_and_ends_with_ctrl_c(fleet: Fleet, job: str) -> None:
    first = free_port()
    with answering("hello") as remote:
        tunnel = Tunnel(fleet, job, f"{first}:{remote}")
        assert tunnel.until("->") == f"127.0.0.1:{first} -> worker 0 port {remote}\n"
        assert fetch(first) == "hello"
        busy = fleet.tpux("tunnel", job, f"{first}:{remote}")
        assert busy.returncode == 2
        assert f"cannot listen on port {first} of this machine" in busy.stderr
        fleet.servers[0].stop()
        assert "trying again" in tunnel.until("worker 0: ")
        fleet.servers[0].start()
        tunnel.until("worker 0: connected again")
        assert fetch(first) == "hello"
    assert tunnel.end() == 130
    with socket.create_server(("127.0.0.1", first)):
        pass  # no ssh is left behind


def test_a_tunnel_works_above_descriptor_1024(fleet: Fleet, job: str) -> None:
    first, remote = 21000 + os.getpid() % 9000, free_port()
    with open_files(1100) as files, answering("hello", remote):
        tunnel = Tunnel(fleet, job, f"{first}:{remote}", files=files)
        tunnel.until("->")
        assert fetch(first) == "hello"
        assert tunnel.end() == 130


def test_a_tunnel_to_all_workers_has_a_local_port_for_each(fleet: Fleet, job: str) -> None:
    first, remote = 21000 + os.getpid() % 9000, free_port()
    tunnel = Tunnel(fleet, job, f"{first}:{remote}", "--worker", "0-2")
    said = "".join(tunnel.until("->") for _ in range(3))
    assert sorted(said.splitlines()) == [f"127.0.0.1:{first + i} -> worker {i} port {remote}" for i in range(3)]
    assert fetch(first + 1) == ""
    assert "worker 1 refused a connection: " in tunnel.until("refused")
    with answering("late", remote):
        assert fetch(first + 1) == "late"  # the program listens now
    tunnel.process.kill()
    tunnel.process.wait()
    deadline = time.monotonic() + 60
    for number in range(3):
        with contextlib.suppress(ConnectionRefusedError):
            while socket.create_connection(("127.0.0.1", first + number)):
                assert time.monotonic() < deadline, "ssh outlives a killed tpux"


@pytest.mark.parametrize("ports", [["0"], ["http"], ["1:2:3"], ["70000"], ["6006:"], ["20001:1", "20001:2"]])
def test_ports_that_cannot_be_forwarded(fleet: Fleet, job: str, ports: list[str]) -> None:
    refused = fleet.tpux("tunnel", job, *ports)
    assert refused.returncode == 2
    assert "LOCAL:REMOTE" in refused.stderr


@pytest.mark.system
def test_commands_fail_for_a_job_without_machines(tpux: Tpux, tmp_path: Path) -> None:
    path = tmp_path / "local.yaml"
    path.write_text("command: {cmd: 'true'}\n")
    assert tpux("run", str(path)).returncode == 0
    for words in (["exec", "1", "--", "true"], ["ssh", "1"], ["ssh-config", "1"], ["tunnel", "1", "6006"]):
        result = tpux(*words)
        assert result.returncode == 2
        assert "holds no machines" in result.stderr


@pytest.mark.system
def test_a_local_job_supports_exec_but_not_ssh(tpux: Tpux, tmp_path: Path) -> None:
    path = tmp_path / "local.yaml"
    path.write_text("tpu: {accelerator: v4-16}\ncommand: {cmd: 'touch ready; sleep 300'}\n")
    assert tpux("create", str(path)).returncode == 0
    deadline = time.monotonic() + 100
    while (result := tpux("exec", "1", "--", "ls")).returncode or result.stdout.count("ready") < 2:
        assert time.monotonic() < deadline, result.stderr
        time.sleep(0.1)
    result = tpux("ssh", "1")
    assert result.returncode == 2
    assert "not ssh" in result.stderr
