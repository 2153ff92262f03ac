"""What a server says when it ends a login is in the error, and never controls a terminal."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import paramiko
import pytest
from ssh_support import MakeServer, make_job, worker_at

from tpux import HostUnreachableError, Job, Worker
from tpux_ssh.host import SshHost
from tpux_ssh.keyfiles import own_key, public_line
from tpux_ssh.section import SshSection

DISCONNECT = b"\1"
Serve = Callable[[socket.socket], None]


@contextmanager
def serving(serve: Serve) -> Iterator[Worker]:
    """Call a function with each connection, and close the connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            with suppress(OSError):  # the listener is closed
                while True:
                    connection = listener.accept()[0]
                    with connection, suppress(OSError):
                        serve(connection)

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield Worker(0, address=f"me@127.0.0.1:{listener.getsockname()[1]}")
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(60)


def error_of(worker: Worker, job: Job, use: Callable[[SshHost], object] = SshHost.open) -> str:
    host = SshHost(worker, job)
    with pytest.raises(HostUnreachableError) as caught:
        use(host)
    host.close()
    return caught.value.message


def saying(text: bytes) -> Serve:
    def serve(connection: socket.socket) -> None:
        connection.sendall(text)
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(1000):
            pass

    return serve


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (b"Not allowed at this time\r\n", "Not allowed at this time"),
        (b"no line break", "no line break"),
        (b"two\r\nlines\r\n", "two lines"),
        (b"SSH server is full\n", "SSH server is full"),
        (b"\x1b[2J\x1b]0;title\x07red \x1b[31malert\x07\xff\xe2\x80\xae\x9b1m", "red alert1m"),
        (b"a" * 150 + b"\n" + b"b" * 5000, "a" * 150 + " " + "b" * 49),
        ("é".encode() * 300, "é" * 100),
    ],
)
def test_text_before_the_version(job: Job, text: bytes, shown: str) -> None:
    with serving(saying(text)) as worker:
        assert error_of(worker, job).endswith(f"closed by the server; it said: {shown}")


def test_a_server_that_says_nothing_is_not_quoted(job: Job) -> None:
    with serving(saying(b" \r\n")) as worker:
        assert error_of(worker, job).endswith("connection lost during login: closed by the server")


def test_text_before_a_reset(job: Job) -> None:
    def serve(connection: socket.socket) -> None:
        connection.sendall(b"Too many connections\r\n")
        connection.recv(1, socket.MSG_PEEK)  # closing with unread data resets the connection

    with serving(serve) as worker:
        assert error_of(worker, job).endswith("; it said: Too many connections")


def test_a_server_that_never_gets_to_its_version(tmp_path: Path) -> None:
    def serve(connection: socket.socket) -> None:
        connection.sendall(b"220 mail.example.com ESMTP\r\n")
        while connection.recv(1000):
            pass

    job = make_job(tmp_path / "job", ssh=SshSection(connect_timeout=1))
    with serving(serve) as worker:
        error = error_of(worker, job)
    assert error.endswith("did not respond for 1 s; it said: 220 mail.example.com ESMTP")


def test_a_hundred_lines_without_a_version_are_quoted_once(job: Job) -> None:
    with serving(saying(b"\x1b[31mnoise\n" * 200)) as worker:
        error = error_of(worker, job)
    assert "\x1b" not in error
    assert error.count("it said") == 1


class Refusing(paramiko.ServerInterface):
    """Accepts each key, and disconnects the client: `when` it logs in, or when it opens a session.

    A server of the OpenSSH project does so for reasons that a test cannot bring about.
    """

    def __init__(self, transport: paramiko.Transport, when: str) -> None:
        self._transport = transport
        self._when = when

    def get_banner(self) -> tuple[str, str]:
        return "Maintenance until noon\r\n", "en"

    def get_allowed_auths(self, username: str) -> str:
        return "publickey"

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        if self._when == "login":
            self._disconnect()
        return paramiko.AUTH_SUCCESSFUL

    def check_channel_request(self, kind: str, chanid: int) -> int:
        if self._when == "session":
            self._disconnect()
        return paramiko.OPEN_SUCCEEDED

    def _disconnect(self) -> None:
        message = paramiko.Message()
        message.add_byte(DISCONNECT)
        message.add_int(11)
        message.add_string("account \x1b[1mexpired\x07")
        message.add_string("")
        self._transport._send_message(message)
        self._transport.close()


def refusing(when: str) -> Serve:
    host_key = paramiko.ECDSAKey.generate()

    def serve(connection: socket.socket) -> None:
        transport = paramiko.Transport(connection)
        transport.add_server_key(host_key)
        with suppress(EOFError, paramiko.SSHException):
            transport.start_server(server=Refusing(transport, when))
            transport.join(60)

    return serve


@pytest.mark.parametrize("when", ["login", "session"])
def test_the_reason_of_a_disconnect(job: Job, when: str) -> None:
    with serving(refusing(when)) as worker:
        error = error_of(worker, job, lambda host: host.run("true"))
    assert "; it said: account expired" in error
    assert error.isprintable()


def test_the_banner_of_a_server_that_rejects_the_keys(make_server: MakeServer, job: Job, tmp_path: Path) -> None:
    (tmp_path / "nologin").write_text(
        "System is booting up.\n\x1b[5mUnprivileged users are not permitted to log in yet.\n"
    )
    server = make_server(extra=f"Banner {tmp_path}/nologin\nAllowUsers nobody-else")
    error = error_of(worker_at(server), job)
    assert "rejected the keys" in error
    assert error.endswith("; it said: System is booting up. Unprivileged users are not permitted to log in yet.")


def test_the_banner_of_a_server_that_lets_in_is_not_shown(make_server: MakeServer, job: Job, tmp_path: Path) -> None:
    (tmp_path / "banner").write_text("Welcome\n")
    server = make_server(extra=f"Banner {tmp_path}/banner")
    host = SshHost(worker_at(server), job)
    assert host.run("echo in").text == "in"
    with pytest.raises(HostUnreachableError) as caught:
        host.run("kill -9 $PPID")
    assert "it said" not in caught.value.message
    host.close()


USES: dict[str, Callable[[SshHost], object]] = {
    "run": lambda host: host.run("true"),
    "read": lambda host: host.read(("file", 0)),
    "put": lambda host: host.put(b"text", "file"),
    "follow": lambda host: host.follow("true", lambda _: None),
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("to", ["", " >&2"])
def test_a_program_in_place_of_the_shell(make_server: MakeServer, job: Job, use: str, to: str) -> None:
    program = f"printf 'This account is \\033[7mcurrently not available.\\n'{to}; exit 1"
    server = make_server(authorized_keys=[f'command="{program}" {public_line(own_key())}'])
    assert error_of(worker_at(server), job, USES[use]).endswith(
        "closed by the server; it said: This account is currently not available."
    )


def test_a_program_that_waits_before_it_ends(
    make_server: MakeServer, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As that of Ubuntu's images for root."""
    text = "Please login as the user ubuntu rather than the user root."
    program = f"echo '{text}'; sleep 100"
    server = make_server(authorized_keys=[f'command="{program}" {public_line(own_key())}'])
    for use in (
        lambda host: host.run("true", timeout=2),
        lambda host: host.follow("true", lambda _: None, timeout=2),
    ):
        error = error_of(worker_at(server), job, use)
        assert error.endswith(
            "no response within 2 s; it said: Please login as the user ubuntu rather than the user root."
        )


def test_what_startup_files_print_is_not_quoted(make_server: MakeServer, job: Job) -> None:
    program = 'echo Welcome; exec sh -c \\"$SSH_ORIGINAL_COMMAND\\"'
    server = make_server(authorized_keys=[f'command="{program}" {public_line(own_key())}'])
    host = SshHost(worker_at(server), job)
    assert host.run("echo in").text == "in"
    with pytest.raises(HostUnreachableError) as caught:
        host.run("kill -9 $PPID")
    assert "it said" not in caught.value.message
    host.close()
