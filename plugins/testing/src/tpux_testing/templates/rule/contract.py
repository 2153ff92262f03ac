"""What tpux relies on, and whole jobs, on this machine."""

from __future__ import annotations

from tpux_testing import hooks_contract, run_job, section_contract


def test_contracts() -> None:
    """The hooks and the keys; jobs whose config does not have the section."""
    hooks_contract("sample")
    section_contract("sample")


def test_a_job_is_resumed_as_often_as_its_config_says() -> None:
    """And fails then."""
    run = run_job({"job": {"rule": "sample"}, "sample": {"times": 1}, "command": {"cmd": "exit 3"}})
    assert (run.state, run.attempts) == ("failed", 2), run.why


def test_a_preempted_job_is_resumed_on_new_machines() -> None:
    """The local machines are preempted once."""
    program = "[ $TPUX_ATTEMPT = 2 ] || sleep 600"
    run = run_job({"job": {"rule": "sample"}, "local": {"preempt_after": 0.2}, "command": {"cmd": program}})
    assert (run.state, run.attempts) == ("succeeded", 2), run.why
