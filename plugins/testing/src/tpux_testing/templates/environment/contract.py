"""What tpux relies on, and a whole job, on this machine."""

from __future__ import annotations

from tpux_testing import environment_contract, hooks_contract, run_job, section_contract


def test_contracts() -> None:
    """The hooks and the keys; output, exit code, variables, arguments and signals pass through."""
    hooks_contract("sample")
    section_contract("sample")
    environment_contract("sample")


def test_a_job() -> None:
    """A job runs its program with the priority of the config."""
    run = run_job({"job": {"env_type": "sample"}, "sample": {"level": 19}, "command": {"cmd": "nice"}})
    assert run.state == "succeeded", run.why
    assert run.output[0] == "19\n"
