from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tpux import CHUNK_SIZE, HostUnreachableError, TpuxError

if TYPE_CHECKING:
    from conftest import Local


def test_a_script_runs_in_the_home_directory_with_a_clean_environment(
    local: Local, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TPUX_RUN_ID", "the supervisor's own")
    [host] = local.hosts()
    result = host.run("pwd; env | cut -d= -f1 | sort | tr '\\n' ' '; echo; echo $HOME $TMPDIR")
    home, names, values = result.text.splitlines()
    assert home == str(host.home)
    assert names.split() == ["HOME", "LANG", "PATH", "PWD", "TMPDIR", "TPUX_LOCAL_HOME", "TPUX_MACHINE_DIR", "USER"]
    assert values == f"{host.home} {host.home}/tmp"
    assert (host.home / "tmp").is_dir()


def test_stdin_and_output_are_bytes(local: Local) -> None:
    [host] = local.hosts()
    data = bytes(range(256)) * 4096
    assert host.run("cat", stdin=data).output == data
    assert host.run("echo out; echo err >&2; exit 3").code == 3
    assert host.run("kill -9 $$").code == 137
    assert host.run("true", stdin=data).ok, "a script need not read its input"


def test_a_timeout_is_unreachable(local: Local) -> None:
    [host] = local.hosts()
    with pytest.raises(HostUnreachableError, match="no response within"):
        host.run("sleep 100", timeout=0.1)


def test_read_from_offsets(local: Local, tmp_path: Path) -> None:
    [host] = local.hosts()
    big = os.urandom(CHUNK_SIZE + 5)
    (host.home / "big").write_bytes(big)
    assert host.read(
        ("big", 0), ("~/big", CHUNK_SIZE), ("big", CHUNK_SIZE + 9), ("none", 0), (str(host.home / "big"), 7)
    ) == [
        big[:CHUNK_SIZE],
        big[CHUNK_SIZE:],
        b"",
        None,
        big[7 : 7 + CHUNK_SIZE],
    ]


def test_put_and_get(local: Local, tmp_path: Path) -> None:
    [host] = local.hosts()
    host.put(b"key", "~/.ssh/id", mode=0o640)
    assert (host.home / ".ssh/id").read_bytes() == b"key"
    assert (host.home / ".ssh/id").stat().st_mode & 0o777 == 0o640
    source = tmp_path / "source"
    source.write_bytes(os.urandom(100_000))
    host.put(source, ".ssh/id")
    host.get(".ssh/id", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == source.read_bytes()
    with pytest.raises(FileNotFoundError):
        host.put(tmp_path / "none", ".ssh/id")
    assert [path.name for path in (host.home / ".ssh").iterdir()] == ["id"], "no temporary file remains"


def test_a_file_that_cannot_be_put_there_is_no_fault_of_this_machine(local: Local) -> None:
    [host] = local.hosts()
    host.put(b"", "file")
    for path, reason in (
        ("file/below", "File exists"),
        ("file/further/below", "Not a directory"),
        ("tmp", "directory"),
    ):
        with pytest.raises(TpuxError, match=f"worker 0: put {path}: .*{reason}"):
            host.put(b"x", path)
    assert sorted(path.name for path in host.home.iterdir()) == ["file", "tmp"], "no temporary file remains"


def test_a_missing_home_is_unreachable(local: Local, tmp_path: Path) -> None:
    [host] = local.hosts()
    shutil.rmtree(host.home)
    for call in (
        lambda: host.run("true"),
        lambda: host.read(("x", 0)),
        lambda: host.put(b"", "x"),
        lambda: host.get("x", tmp_path / "x"),
    ):
        with pytest.raises(HostUnreachableError, match="worker 0: there is no directory"):
            call()
