from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tpux.remote.process import Status, poll, probe

if TYPE_CHECKING:
    from conftest import Here

fewer = settings(max_examples=settings.default.max_examples // 2)  # each runs bash


@pytest.mark.parametrize("output", [bytes(range(256)) * 3, b"no newline", b"\0", b"tpux-run ended 0\n" * 2, b""])
def test_output_bytes_are_unchanged(here: Here, output: bytes) -> None:
    (here.home / "data").write_bytes(output)
    assert here.start("cat data").output == output
    assert here.follow(here.run()) == (0, output)
    assert probe(here.host, here.run(), 1).output == output[1:]


def test_fifty_megabytes_in_chunks(here: Here) -> None:
    data = os.urandom(50 * 1024 * 1024)
    (here.home / "data").write_bytes(data)
    status = here.start("cat data", wait=0.05)
    assert status.more or status.phase == "running"
    code, output = here.follow(here.run())
    assert (code, hashlib.sha256(output).digest()) == (0, hashlib.sha256(data).digest())


def test_a_full_chunk_says_that_there_may_be_more(here: Here) -> None:
    status = here.start("head -c 5000000 /dev/zero")
    known = len(status.output)
    assert (status.phase, status.more) == ("ended", True)
    status = poll(here.host, here.run(), known)
    assert (status.phase, status.more, len(status.output)) == ("ended", True, 4 * 1024 * 1024)
    status = poll(here.host, here.run(), known + len(status.output))
    assert (status.phase, status.more, len(status.output)) == ("ended", False, 5000000 - known - 4 * 1024 * 1024)


def test_a_start_and_a_probe_answer_within_their_time_on_a_slow_link(here: Here) -> None:
    """All of the answer must come within a minute, or it is asked for again: a read lasts as long as it needs."""
    assert len(here.start("head -c 5000000 /dev/zero").output) <= 64 * 1024
    status = probe(here.host, here.run(), 1000)
    assert (status.more, len(status.output) <= 64 * 1024) == (True, True)


@fewer
@given(polls=st.lists(st.tuples(st.sampled_from([poll, probe]), st.integers(1, 700), st.booleans()), max_size=8))
def test_interruptions_lose_and_repeat_nothing(
    here: Here, polls: list[tuple[Callable[..., Status], int, bool]]
) -> None:
    """Each poll may return less than there is, and its answer may be lost."""
    data = bytes(range(256)) * 8
    (here.home / "data").write_bytes(data)
    here.start("cat data")
    log = bytearray()
    for read, chunk, lost in polls:
        answer = read(replace(here.host, chunk=chunk), here.run(), len(log)).output
        log += b"" if lost else answer
        assert data.startswith(bytes(log))
    log += poll(here.host, here.run(), len(log)).output
    assert bytes(log) == data


def test_space_for_the_exit_code_is_reserved(here: Here) -> None:
    """A program that fills the disk still has an exit code: its file is written before the start."""
    here.start("sleep 100", wait=0.05)
    assert here.file(here.run(), "ending").stat().st_size == len("137 1700000000.123456789\n")
