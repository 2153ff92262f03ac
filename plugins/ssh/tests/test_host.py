"""A worker over ssh keeps the contract of `tpux.Host`, byte for byte."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ssh_servers import Server

from tpux import PIECE, HostUnreachableError, Result, TpuxError
from tpux_ssh.channel import Shell, send
from tpux_ssh.host import SshHost

ALL_BYTES = bytes(range(256))


def test_runs_scripts_in_the_home_directory_one_after_another(host: SshHost) -> None:
    assert host.run("cd / && pwd && echo err >&2; exit 3") == host.run("echo /; echo err; exit 3")
    assert host.run("echo $PWD; kill -9 $$").code == 137
    assert host.run("printf 'no newline'").output == b"no newline"
    assert host.run("").output == b""
    assert host.run("trap 'echo bye' EXIT; exec 1>&2; echo 'a\\n'; exit 7").code == 7
    assert host.run("printf '%s' \"$0\" 'é' \"don't\"").text == "shédon't"


def test_input_and_output_are_binary(host: SshHost) -> None:
    data = ALL_BYTES * 5000 + b"\n"
    assert host.run("cat", stdin=data).output == data
    assert host.run("wc -c", stdin=data).text == str(len(data))


def test_output_is_told_as_it_comes(server: Server, host: SshHost) -> None:
    heard = bytearray()

    def hear(piece: bytes) -> None:
        heard.extend(piece)
        if heard == b"first\n":
            (server.home / "heard").touch()  # the script waits for this

    code = host.follow("echo first; until [ -e heard ]; do sleep 0.05; done; cat; exit 4", hear, stdin=b"x" * 9)
    assert code == 4
    assert heard == b"first\n" + b"x" * 9
    big = bytearray()
    assert host.follow("cat", big.extend, stdin=ALL_BYTES * 20_000) == 0
    assert big == ALL_BYTES * 20_000
    assert host.run("echo next").output == b"next\n"


@given(st.lists(st.binary(max_size=40)), st.sampled_from([b"", b"a", b"ab", b"mark", b"mark 1", b"mark 1\nmark 1"]))
def test_an_output_is_the_same_however_it_is_cut(pieces: list[bytes], odd: bytes) -> None:
    class Channel:
        def __init__(self) -> None:
            self.left = [*filter(None, pieces), *([odd] if odd else []), *[bytes([byte]) for byte in b"mark 7\n"]]

        def settimeout(self, seconds: float) -> None: ...

        def recv(self, size: int) -> bytes:
            return self.left.pop(0)

    shell = Shell.__new__(Shell)
    shell._greeted = True
    shell._channel = Channel()  # type: ignore[assignment]
    assert shell._answer(b"mark", time.monotonic() + 5) == Result(7, b"".join(pieces) + odd)


def test_what_is_left_in_the_background_does_not_hold_up_the_end(host: SshHost) -> None:
    began, heard = time.monotonic(), bytearray()
    assert host.follow("sleep 50 & echo over; exit 6", heard.extend) == 6
    assert time.monotonic() - began < 40
    assert heard == b"over\n"
    assert host.follow("exec sh -c 'kill -9 $$'", heard.extend) == 137
    with pytest.raises(HostUnreachableError, match=r"no answer within 0\.5 s"):
        host.follow("sleep 30", heard.extend, timeout=0.5)
    assert host.follow("cat; echo $PWD", heard.extend, stdin=b"in ") == 0
    assert heard == b"over\nin /root\n"


def test_input_that_is_not_read_is_not_taken_for_the_next_script(host: SshHost) -> None:
    assert host.run("exit 5", stdin=b"10 0 x\necho no\n" * 100_000).code == 5
    assert host.run("head -c 1", stdin=b"abc").output == b"a"
    assert host.run("echo next").output == b"next\n"


def test_a_script_that_takes_too_long_is_out_of_reach_and_the_next_one_works(host: SshHost) -> None:
    began = time.monotonic()
    with pytest.raises(HostUnreachableError, match=r"no answer within 0\.5 s"):
        host.run("sleep 50", timeout=0.5)
    assert time.monotonic() - began < 40
    assert host.run("echo next").output == b"next\n"


def test_what_a_login_writes_is_left_out(server: Server, host: SshHost) -> None:
    (server.home / ".bashrc").write_text("echo welcome; echo to >&2; cd /\n")
    assert host.run("pwd").text == str(Path("~root").expanduser())
    assert host.read(("nothing", 0)) == [None]


def test_half_a_script_is_never_run(server: Server, host: SshHost) -> None:
    """The connection breaks after half of it: the other half might have been `/old` of `rm -rf ~/old`."""
    host.run("true")
    assert host._shell
    send(host._shell._channel, b"1000 0 mark\ntouch ran; echo x\n")
    host.close()
    time.sleep(0.3)
    assert not (server.home / "ran").exists()


def test_puts_a_file_whole_with_its_mode(server: Server, host: SshHost, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(ALL_BYTES * 40_000)
    host.put(source, "~/a dir/it's", mode=0o640)
    copy = server.home / "a dir" / "it's"
    assert copy.read_bytes() == source.read_bytes()
    assert stat.S_IMODE(copy.stat().st_mode) == 0o640
    host.put(b"", "a dir/it's")
    assert copy.read_bytes() == b""
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    assert [path.name for path in copy.parent.iterdir()] == ["it's"]


def test_a_file_that_cannot_be_put_leaves_the_old_one(server: Server, host: SshHost) -> None:
    (server.home / "directory").mkdir()
    (server.home / "file").write_text("old")
    with pytest.raises(TpuxError, match="put file/below"):
        host.put(b"new", "file/below")
    assert (server.home / "file").read_text() == "old"
    assert host.run("echo next").ok


def test_gets_files_of_any_length(server: Server, host: SshHost, tmp_path: Path) -> None:
    content = os.urandom(PIECE + 12345)
    (server.home / "big").write_bytes(content)
    host.get("big", tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == content
    with pytest.raises(TpuxError, match="there is no file none"):
        host.get("none", tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == content


def test_reads_pieces_in_one_round_trip(server: Server, host: SshHost) -> None:
    (server.home / "bytes").write_bytes(ALL_BYTES)
    (server.home / "big").write_bytes(b"x" * (PIECE + 1))
    pieces = host.read(("bytes", 0), ("none", 0), ("~/bytes", 250), ("bytes", 256), ("bytes", 999), ("big", 0))
    assert pieces == [ALL_BYTES, None, ALL_BYTES[250:], b"", b"", b"x" * PIECE]
    assert host.read(("big", PIECE)) == [b"x"]
    assert host.read() == []


def test_an_answer_that_is_interrupted_is_not_taken_for_the_next_one(
    host: SshHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.run("true")
    assert host._shell

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(host._shell, "_answer", interrupted)
    with pytest.raises(KeyboardInterrupt):
        host.run("echo first")
    assert host.run("echo second").output == b"second\n"
