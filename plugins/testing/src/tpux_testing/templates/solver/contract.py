"""What tpux relies on, and a whole job, on this machine."""

from __future__ import annotations

from tpux_testing import detector_contract, hooks_contract, run_job, section_contract

PROGRAM = """
[ $TPUX_ATTEMPT = 2 ] || touch a.lock
if [ -e a.lock ]; then echo the lock is held; exit 1; fi
echo no lock
"""


def test_contracts() -> None:
    """The hooks and the keys; jobs whose config does not have the section."""
    hooks_contract("sample")
    section_contract("sample")
    detector_contract("sample", {"error: the lock is held": "tpu-busy"})


def test_a_job() -> None:
    """A job whose program finds the lock is repaired and resumed."""
    run = run_job({"job": {"rule": "resume"}, "sample": {"path": "a.lock"}, "command": {"cmd": PROGRAM}})
    assert run.state == "succeeded", run.why
    assert run.output[0] == "no lock\n"
