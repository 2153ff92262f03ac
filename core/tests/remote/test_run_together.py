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


def run_together(scripts: dict[str, Sh]) -> dict[str, Result]:
    return steps.run_together(cast("Host", Here()), scripts, 60)


def test_scripts_that_run_together_have_results_of_their_own():
    scripts = {
        "fails": Sh("echo first; false; echo never"),
        "exits": Sh("printf 'no newline'; exit 7"),
        "quotes": sh("echo {text}", text="a 'b' \"c\" $d e"),
        "silent": Sh("exec true"),
    }
    assert run_together(scripts) == {
        "fails": Result(1, b"first\n"),
        "exits": Result(7, b"no newline"),
        "quotes": Result(0, b"a 'b' \"c\" $d e\n"),
        "silent": Result(0, b""),
    }


def test_scripts_that_read_have_no_input_of_others():
    assert run_together({"reads": Sh("cat"), "next": Sh("echo two")}) == {
        "reads": Result(0, b""),
        "next": Result(0, b"two\n"),
    }


def test_a_script_that_the_shell_cannot_parse_fails_alone():
    results = run_together({"bad": Sh("if; ("), "good": Sh("echo good")})
    assert results["bad"].code != 0
    assert results["good"] == Result(0, b"good\n")


def test_what_comes_after_an_end_from_outside_is_unknown():
    scripts = {"first": Sh("echo one"), "second": Sh("kill -9 $$"), "third": Sh("echo three")}
    assert run_together(scripts) == {"first": Result(0, b"one\n")}


@pytest.mark.parametrize("text", ["'" * 3000, "'" * 20_000, "x" * 200_000, "é" * 16_000])
def test_long_scripts_are_run_too(text):
    """An argument of a program is limited to 128 KiB, and quotes take several characters in it."""
    assert run_together({"long": sh("printf %s {text} | wc -c", text=text)}) == {
        "long": Result(0, b"%d\n" % len(text.encode()))
    }
