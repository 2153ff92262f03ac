from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tpux.remote.followed_process import LocalRun

if TYPE_CHECKING:
    from conftest import Here


def silent_run(here: Here, log: Path) -> LocalRun:
    """Start a program that has written a line, which the log has, and sleeps."""
    run = here.start_and_wait("echo first; sleep 1000")
    log.write_bytes(b"first\n")
    return LocalRun.at(here.home, run, log)


def test_a_sleeping_program_is_silent_and_has_a_runner(here: Here, tmp_path: Path) -> None:
    local = silent_run(here, tmp_path / "log")
    assert local.is_silent()
    assert local.has_runner()


def test_output_of_the_same_size_that_was_written_later_is_news(here: Here, tmp_path: Path) -> None:
    log = tmp_path / "log"
    local = silent_run(here, log)
    os.utime(local.output, ns=(0, log.stat().st_mtime_ns + 1))
    assert not local.is_silent()


@pytest.mark.parametrize("name", ["exit", "notice"])
def test_an_end_or_a_notice_is_news(here: Here, tmp_path: Path, name: str) -> None:
    local = silent_run(here, tmp_path / "log")
    here.file(here.run(), name).write_text("notice soon\n")
    assert not local.is_silent()


@pytest.mark.parametrize("log", [b"", b"firs", b"first\nsecond\n"])
def test_output_that_was_not_fetched_is_news(here: Here, tmp_path: Path, log: bytes) -> None:
    local = silent_run(here, tmp_path / "log")
    (tmp_path / "log").write_bytes(log)
    assert not local.is_silent()


def test_files_that_are_gone_are_news(here: Here, tmp_path: Path) -> None:
    local = silent_run(here, tmp_path / "log")
    here.home.rename(tmp_path / "elsewhere")
    assert not local.is_silent()
    assert not local.has_runner()
    (tmp_path / "elsewhere").rename(here.home)


def test_a_runner_that_was_killed_is_gone(here: Here, tmp_path: Path) -> None:
    local = silent_run(here, tmp_path / "log")
    os.kill(here.runner(here.run()), signal.SIGKILL)
    here.until(lambda: not local.has_runner())
    assert local.is_silent()
