"""What tpux relies on, and a whole job, on this machine."""

from __future__ import annotations

from tpux_testing import hooks_contract, module_contract, run_job, section_contract

SECTION = {"text": "good morning"}


def test_contracts() -> None:
    """The hooks, the keys, and set-ups that are cut off and repeated."""
    hooks_contract("sample")
    section_contract("sample", SECTION)
    module_contract("sample", SECTION)


def test_a_job() -> None:
    """A job sets the worker up, and its program finds the greeting."""
    run = run_job({"setup": {"modules": ["sample"]}, "sample": SECTION, "command": {"cmd": "cat greeting"}})
    assert run.state == "succeeded", run.why
    assert run.output[0] == "good morning"
