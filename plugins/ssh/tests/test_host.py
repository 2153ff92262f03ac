"""`SshHost` implements the contract of `tpux.Host`, byte for byte."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path

import pytest
from ssh_servers import Server
from ssh_support import MakeServer, open_files, worker_at

from tpux import CHUNK_SIZE, HostUnreachableError, Job, TpuxError
from tpux_ssh.host import SshHost

ALL_BYTES = bytes(range(256))


def test_runs_scripts_in_the_home_directory(host: SshHost) -> None:
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


def test_connections_work_above_descriptor_1024(server: Server, job: Job, tmp_path: Path) -> None:
    with open_files(1100):  # `select` fails there
        host = SshHost(worker_at(server), job)
        assert host.run("cat", stdin=ALL_BYTES).output == ALL_BYTES
        host.put(ALL_BYTES * 5000, "sent")
        host.get("sent", tmp_path / "got")
        assert (tmp_path / "got").read_bytes() == ALL_BYTES * 5000
        received = bytearray()
        assert host.follow("cat sent", received.extend) == 0
        assert received == ALL_BYTES * 5000
        host.close()


def test_output_is_streamed(server: Server, host: SshHost) -> None:
    received = bytearray()

    def receive(chunk: bytes) -> None:
        received.extend(chunk)
        if received == b"first\n":
            (server.home / "received").touch()  # the script waits for this

    script = "echo first; until [ -e received ]; do sleep 0.05; done; cat; exit 4"
    assert host.follow(script, receive, stdin=b"x" * 9) == 4
    assert received == b"first\n" + b"x" * 9
    big = bytearray()
    assert host.follow("cat", big.extend, stdin=ALL_BYTES * 20_000) == 0
    assert big == ALL_BYTES * 20_000
    assert host.run("echo next").output == b"next\n"


def test_a_listener_that_is_slow_stops_the_script(server: Server, host: SshHost) -> None:
    sizes: list[int] = []

    def receive(chunk: bytes) -> None:
        if not sizes:
            ends = time.monotonic() + 3.0  # in which the script could write all
            while time.monotonic() < ends and not (server.home / "written").exists():
                time.sleep(0.05)
            assert not (server.home / "written").exists()
        sizes.append(len(chunk))

    assert host.follow("cat; head -c 100000000 /dev/zero; touch written", receive, stdin=b"x" * 9) == 0
    assert sum(sizes) == 100_000_009
    assert max(sizes) < 10_000_000


def test_a_stream_runs_beside_what_else_the_connection_does(server: Server, host: SshHost) -> None:
    stream = host.stream("echo first; until [ -e heard ]; do sleep 0.05; done; printf '\\000second'; rm heard")
    received = b""
    while received != b"first\n":
        received += stream.take() or b""
    assert stream.take() == b""
    host.put(b"", "heard")
    while (piece := stream.take()) is not None:
        received += piece
    assert received == b"first\n\0second"
    assert stream.take() is None
    assert host.run("ls heard").code != 0


def test_a_closed_stream_ends_its_script(host: SshHost) -> None:
    stream = host.stream("echo $$ >pid; while printf .; do sleep 0.05; done")
    while not stream.take():
        time.sleep(0.01)
    stream.close()
    assert host.run("while kill -0 $(cat pid) 2>/dev/null; do sleep 0.05; done; echo ended").text == "ended"
    assert stream.take() is None


def test_a_stream_ends_with_the_connection(server: Server, host: SshHost) -> None:
    stream = host.stream("sleep 600")
    assert stream.take() == b""
    server.stop()
    while stream.take() is not None:
        time.sleep(0.01)


def test_a_server_that_allows_no_second_channel_refuses_a_stream_alone(make_server: MakeServer, job: Job) -> None:
    host = SshHost(worker_at(make_server(extra="MaxSessions 1")), job)
    assert host.run("echo here").text == "here"
    with pytest.raises(TpuxError, match="no further channel") as caught:
        host.stream("echo not here")
    assert not isinstance(caught.value, HostUnreachableError)
    assert host.run("echo here").text == "here"
    host.close()


def test_background_processes_do_not_delay_the_end(host: SshHost) -> None:
    began, received = time.monotonic(), bytearray()
    assert host.follow("sleep 50 & echo over; exit 6", received.extend) == 6
    assert time.monotonic() - began < 40
    assert received == b"over\n"
    assert host.follow("exec sh -c 'kill -9 $$'", received.extend) == 137
    with pytest.raises(HostUnreachableError, match=r"no response within 0\.5 s"):
        host.follow("sleep 30", received.extend, timeout=0.5)
    assert host.follow("cat; echo $PWD", received.extend, stdin=b"in ") == 0
    assert received == b"over\nin /root\n"


def test_unread_input_is_not_parsed_as_the_next_script(host: SshHost) -> None:
    assert host.run("exit 5", stdin=b"10 0 x\necho no\n" * 100_000).code == 5
    assert host.run("head -c 1", stdin=b"abc").output == b"a"
    assert host.run("echo next").output == b"next\n"


def test_a_script_that_times_out_raises_and_the_next_one_works(host: SshHost) -> None:
    began = time.monotonic()
    with pytest.raises(HostUnreachableError, match=r"no response within 0\.5 s"):
        host.run("sleep 50", timeout=0.5)
    assert time.monotonic() - began < 40
    assert host.run("echo next").output == b"next\n"


def test_output_of_startup_files_is_removed(server: Server, host: SshHost) -> None:
    (server.home / ".bashrc").write_text("echo welcome; echo to >&2; cd /\n")
    assert host.run("pwd").text == str(Path("~root").expanduser())
    assert host.read(("nothing", 0)) == [None]


def test_a_truncated_script_is_not_run(server: Server, host: SshHost) -> None:
    """The connection is lost after half of it: the missing half could be the `/old` of `rm -rf ~/old`."""
    host.run("true")
    assert host._shell
    host._shell._connection.send(b"1000 0 mark\ntouch ran; echo x\n")
    host.close()
    time.sleep(0.3)
    assert not (server.home / "ran").exists()


def test_put_writes_content_and_mode(server: Server, host: SshHost, tmp_path: Path) -> None:
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


def test_a_failed_put_keeps_the_old_file(server: Server, host: SshHost) -> None:
    (server.home / "directory").mkdir()
    (server.home / "file").write_text("old")
    with pytest.raises(TpuxError, match="put file/below"):
        host.put(b"new", "file/below")
    assert (server.home / "file").read_text() == "old"
    assert host.run("echo next").ok


def test_get_copies_files_of_any_size(server: Server, host: SshHost, tmp_path: Path) -> None:
    content = os.urandom(CHUNK_SIZE + 12345)
    (server.home / "big").write_bytes(content)
    host.get("big", tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == content
    with pytest.raises(TpuxError, match="file not found: none"):
        host.get("none", tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == content


def test_read_returns_each_file_from_its_offset(server: Server, host: SshHost) -> None:
    (server.home / "bytes").write_bytes(ALL_BYTES)
    (server.home / "big").write_bytes(b"x" * (CHUNK_SIZE + 1))
    contents = host.read(("bytes", 0), ("none", 0), ("~/bytes", 250), ("bytes", 256), ("bytes", 999), ("big", 0))
    assert contents == [ALL_BYTES, None, ALL_BYTES[250:], b"", b"", b"x" * CHUNK_SIZE]
    assert host.read(("big", CHUNK_SIZE)) == [b"x"]
    assert host.read() == []


def test_the_reply_after_an_interrupt_is_not_used_for_the_next_script(
    host: SshHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.run("true")
    assert host._shell

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(host._shell, "take", interrupted)
    with pytest.raises(KeyboardInterrupt):
        host.run("echo first")
    assert host.run("echo second").output == b"second\n"
