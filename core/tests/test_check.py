"""The first scripts of several checks run as one step."""

from __future__ import annotations

import subprocess

import pytest

from tpux import Result, Sh, sh
from tpux.remote.steps import run_together


def test_scripts_that_run_together_have_results_of_their_own():
    scripts = {
        "fails": Sh("echo first; false; echo never"),
        "exits": Sh("printf 'no newline'; exit 7"),
        "quotes": sh("echo {text}", text="a 'b' \"c\" $d e"),
        "silent": Sh("exec true"),
    }
    steps = run_together(scripts, "0f1e")
    step = next(steps)
    assert isinstance(step, Sh)
    assert step.timeout == 4 * 3600
    done = subprocess.run(["sh", "-e", "-c", step.script], stdout=subprocess.PIPE, check=True)
    with pytest.raises(StopIteration) as end:
        steps.send(Result(done.returncode, done.stdout))
    assert end.value.value == {
        "fails": Result(1, b"first\n"),
        "exits": Result(7, b"no newline"),
        "quotes": Result(0, b"a 'b' \"c\" $d e\n"),
        "silent": Result(0, b""),
    }


def test_results_that_are_cut_off_are_unknown():
    steps = run_together({name: Sh("true") for name in "abc"}, "0f1e")
    next(steps)
    with pytest.raises(StopIteration) as end:
        steps.send(Result(143, b"end of it\n\n0f1e 1 0\nit took longer than 3 s and was ended\n"))
    assert end.value.value == {"b": Result(0, b"end of it\n")}
