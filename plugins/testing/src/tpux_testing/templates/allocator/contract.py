"""What tpux relies on, and a whole job, on this machine."""

from __future__ import annotations

from tpux_testing import allocator_contract, hooks_contract, run_job, section_contract

TPU = {"allocation_mode": "sample", "machines": ["ant", "bee"]}


def test_contracts() -> None:
    """The hooks and the keys; crashes between any two steps, releases before and after, twice."""
    hooks_contract("sample")
    section_contract("sample")
    allocator_contract("sample", {"tpu": TPU})


def test_a_job() -> None:
    """A job gets the machines that its config names."""
    run = run_job({"tpu": TPU, "command": {"cmd": "basename $HOME"}})
    assert run.state == "succeeded", run.why
    assert run.output == {0: "ant\n", 1: "bee\n"}
