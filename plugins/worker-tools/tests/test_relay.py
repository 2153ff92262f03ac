"""`RelayHost` on a shell of this machine: what scripts leave behind on the stream is not taken for a reply."""

from __future__ import annotations

import os
import select
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path, PosixPath
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpux import HostUnreachableError, Worker
from tpux_worker_tools import relay
from tpux_worker_tools.relay import _END_OF_READ, _READ, LOOP, RelayHost, _Reply


class Pipes:
    """The pipes of a shell that is a child of this process."""

    unsent = 0

    def __init__(self, home: Path) -> None:
        self.ended = ""
        self.process = subprocess.Popen(
            ["sh", "-c", LOOP], env={**os.environ, "HOME": str(home)}, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._stdin, self._stdout = self.process.stdin, self.process.stdout

    def send(self, data: bytes) -> None:
        self._stdin.write(data)
        self._stdin.flush()

    def wait(self, timeout: float) -> bool:
        return bool(select.select([self._stdout], [], [], max(0.0, timeout))[0])

    def take(self) -> bytes:
        if not self.wait(0):
            return b""
        piece = os.read(self._stdout.fileno(), 2**20)
        self.ended = "" if piece else "the shell has ended"
        return piece

    def close(self) -> None:
        self._stdin.close()
        self._stdout.close()
        self.process.wait(60)


class SlowPipes(Pipes):
    """Pipes to a shell on a slow link: each piece of output takes `pause` seconds of a clock of its own."""

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        self.now, self.pause, self._arrived = 0.0, 0.0, b""

    def wait(self, timeout: float) -> bool:
        self.now += min(self.pause, timeout)
        if self.pause > timeout:
            return False
        return bool(self._arrived or select.select([self._stdout], [], [], 60)[0])

    def take(self) -> bytes:
        if not self._arrived and select.select([self._stdout], [], [], 0)[0]:
            self._arrived = os.read(self._stdout.fileno(), 2**20)
        piece, self._arrived = self._arrived[: 2**16], self._arrived[2**16 :]
        return piece


class PipeHost(RelayHost):
    """A host of this machine."""

    def __init__(self, home: Path) -> None:
        super().__init__(Worker(3), 60.0)
        self.home = home
        self.opened: list[Pipes] = []

    def connect(self) -> Pipes:
        self.opened.append(Pipes(self.home))
        return self.opened[-1]

    def unreachable(self, message: str) -> HostUnreachableError:
        return HostUnreachableError(message)


@pytest.fixture
def host(tmp_path: Path) -> Iterator[PipeHost]:
    host = PipeHost(tmp_path)
    yield host
    host.close()


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_output_of_a_process_that_is_left_behind_is_not_that_of_the_next_script(host: PipeHost, tmp_path: Path) -> None:
    """It arrives after the reply, and before the next request."""
    script = "(until [ -e go ]; do sleep 0.01; done; echo late; echo late 2; touch said) & echo now; exit 5"
    assert (host.run(script).code, host.run("echo between").text) == (5, "between")
    (tmp_path / "go").touch()
    wait_for(tmp_path / "said")
    assert host.run("echo next").output == b"next\n"
    (tmp_path / "file").write_bytes(b"content")
    assert host.read(("file", 0), ("none", 0)) == [b"content", None]
    assert len(host.opened) == 1


def test_output_in_the_middle_of_a_read_is_no_content(
    host: PipeHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reply without the sizes closes the connection, and with it what writes there."""
    (tmp_path / "file").write_bytes(b"content")
    monkeypatch.setattr("tpux_worker_tools.relay._READ", f"echo noise\n{_READ}")
    with pytest.raises(HostUnreachableError, match="truncated"):
        host.read(("file", 0))
    monkeypatch.undo()
    assert host.read(("file", 0)) == [b"content"]
    assert len(host.opened) == 2


@given(
    st.lists(st.binary(max_size=40)),
    st.sampled_from([b"", b"m", b"mar", b"mar 1\n", b"marmar"]),
    st.sampled_from([b"", b"late", b"late\n", b"late\nmark 9\n", b" 8\n", b"\n"]),
)
def test_a_reply_is_the_same_for_any_chunk_boundaries(chunks: list[bytes], odd: bytes, late: bytes) -> None:
    reply = _Reply(b"mark")
    output = b""
    for piece in [*filter(None, chunks), odd, *[bytes([byte]) for byte in b"mark 137\n"]]:
        assert reply.code is None
        output += reply.feed(piece)
    assert (reply.code, output) == (137, b"".join(chunks) + odd)
    whole = _Reply(b"mark")
    assert whole.feed(output + b"mark 137\n" + late) == output
    assert whole.code == 137


@pytest.mark.parametrize("stdin", [b"", b"input"])
def test_the_shells_own_words_are_no_output(host: PipeHost, stdin: bytes) -> None:
    result = host.run("echo out; echo err >&2; kill -9 $$", stdin=stdin)
    assert (result.code, result.output) == (137, b"out\nerr\n")
    assert host.run("if; x", stdin=stdin).code == 2
    assert "yntax error" in host.run("if; x", stdin=stdin).text


def test_a_shell_that_has_ended_while_it_was_idle_is_opened_anew(host: PipeHost) -> None:
    assert host.run("echo one").text == "one"
    host.opened[0].process.kill()
    host.opened[0].process.wait()
    assert host.run("echo two").text == "two"
    assert len(host.opened) == 2


def test_a_shell_that_ends_in_a_script_is_an_unreachable_worker(host: PipeHost) -> None:
    with pytest.raises(HostUnreachableError, match="the shell has ended"):
        host.run("kill -9 $PPID")
    assert host.run("echo next").text == "next"


def test_a_stream_that_cannot_be_sent_is_an_unreachable_worker(host: PipeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its connection is closed, and the one that other scripts use is not."""
    assert host.run("echo one").text == "one"

    def send(*_: object) -> None:
        raise TimeoutError

    monkeypatch.setattr(Pipes, "send", send)
    with pytest.raises(HostUnreachableError, match="could not be sent"):
        host.stream("echo two")
    monkeypatch.undo()
    assert host.opened[1].process.poll() is not None
    assert host.run("echo three").text == "three"
    assert len(host.opened) == 2


class Changing(PosixPath):
    """A file that another process writes once its size was asked."""

    after = b""

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        found = super().stat(follow_symlinks=follow_symlinks)
        self.write_bytes(self.after)
        return found


def test_what_a_file_has_grown_by_while_it_is_copied_is_not_run(host: PipeHost, tmp_path: Path) -> None:
    """A log, for example, may contain anything, also lines that look like a request."""
    source = Changing(tmp_path / "log")
    source.write_bytes(b"content")
    source.after = b"content14 0\ntouch executed"
    host.put(source, "copy")
    assert host.run("cat copy").output == b"content"
    assert not (tmp_path / "executed").exists()
    assert len(host.opened) == 1


def test_a_file_that_becomes_shorter_while_it_is_copied_is_an_error(host: PipeHost, tmp_path: Path) -> None:
    """The shell would wait for the rest; the next script gets another one."""
    source = Changing(tmp_path / "log")
    source.write_bytes(b"content")
    source.after = b"short"
    with pytest.raises(OSError, match="log became shorter while it was copied"):
        host.put(source, "copy")
    assert host.run("ls | grep -x copy || echo none").text == "none"
    assert len(host.opened) == 2


def test_output_that_keeps_coming_does_not_extend_the_timeout(host: PipeHost) -> None:
    with pytest.raises(HostUnreachableError, match=r"no response within 0\.5 s"):
        host.follow("timeout 10 yes", lambda _: time.sleep(0.01), timeout=0.5)  # more has come whenever it looks
    assert host.run("echo next").text == "next"


def test_a_read_on_a_slow_link_lasts_as_long_as_bytes_arrive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would begin again at the same offset each time; without a byte for a while, it is given up."""
    pipes = SlowPipes(tmp_path)
    host = PipeHost(tmp_path)
    monkeypatch.setattr(host, "connect", lambda: pipes)
    monkeypatch.setattr(relay, "time", SimpleNamespace(monotonic=lambda: pipes.now))
    assert host.run("echo one").text == "one"
    content = os.urandom(3_000_000)
    (tmp_path / "file").write_bytes(content)
    pipes.pause = 9.0
    assert host.read(("file", 0)) == [content]
    assert pipes.now > 60
    pipes.pause = 11.0
    with pytest.raises(HostUnreachableError, match="no response within 10 s"):
        host.read(("file", 0))


def test_a_line_without_a_marker_is_no_request(tmp_path: Path) -> None:
    command, variables = ["sh", "-c", LOOP], {**os.environ, "HOME": str(tmp_path)}
    for request in (b"14 0\ntouch executed", b"16 0 d\ntouch executed d"):
        subprocess.run(command, input=request, env=variables, stdout=subprocess.PIPE)
        assert not [*tmp_path.iterdir()]


def test_a_file_that_is_removed_while_it_is_read_adds_no_message(tmp_path: Path) -> None:
    """A message would be taken for its content, or for that of the next file."""
    for offset in (0, 2):
        (tmp_path / "gone").write_text("12345")
        remove = 'wc() { command wc "$@"; rm gone; }; mark=end\n'
        script = f"{remove}{_READ}read_from gone {offset}\n{_END_OF_READ}"
        command = ["sh", "-c", script]
        done = subprocess.run(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert done.stdout == f"{5 - offset}\nend 0\n".encode()
