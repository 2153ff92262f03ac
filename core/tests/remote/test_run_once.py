"""Scripts that run in one exchange."""

from __future__ import annotations

import subprocess
from typing import cast

import pytest

from tpux import Result, Sh, sh
from tpux.model.host import Host
from tpux.remote import steps


class Here:
    def run(self, script: str, *, stdin: bytes = b"", timeout: float = 60.0) -> Result:
        done = subprocess.run(["sh", "-c", script], input=stdin, stdout=subprocess.PIPE, timeout=timeout, check=False)
        return Result(done.returncode, done.stdout)


def run_once(script: Sh) -> Result | None:
    return steps.run_once(cast("Host", Here()), script, 60)


@pytest.mark.parametrize(
    ("script", "result"),
    [
        (Sh("echo first; false; echo never"), Result(1, b"first\n")),
        (Sh("printf 'no newline'; exit 7"), Result(7, b"no newline")),
        (sh("echo {text}", text="a 'b' \"c\" $d e"), Result(0, b"a 'b' \"c\" $d e\n")),
        (Sh("exec true"), Result(0, b"")),
    ],
)
def test_a_script_has_its_result(script, result):
    assert run_once(script) == result


def test_a_script_that_reads_has_no_input():
    assert run_once(Sh("cat")) == Result(0, b"")


def test_a_script_that_the_shell_cannot_parse_fails():
    result = run_once(Sh("if; ("))
    assert result is not None
    assert result.code != 0


def test_the_result_of_a_script_that_was_ended_from_outside_is_unknown():
    assert run_once(Sh("echo one; kill -9 $$")) is None


@pytest.mark.parametrize("text", ["'" * 3000, "'" * 20_000, "x" * 200_000, "é" * 16_000])
def test_long_scripts_are_run_too(text):
    """An argument of a program is limited to 128 KiB, and quotes take several characters in it."""
    assert run_once(sh("printf %s {text} | wc -c", text=text)) == Result(0, b"%d\n" % len(text.encode()))
