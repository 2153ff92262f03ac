"""What tpux relies on, and a whole job, on this machine."""

from __future__ import annotations

from tpux_testing import detector_contract, hooks_contract, run_job, section_contract

LINE = "OSError: [Errno 28] No space left on device"


def test_contracts() -> None:
    """The hooks and the keys; any log and exit code, and the example on any worker."""
    hooks_contract("sample")
    section_contract("sample")
    detector_contract("sample", {LINE: "config"})


def test_a_job() -> None:
    """A job that fails with the line has the failure, the line and the hint."""
    run = run_job({"sample": {"hint": "buy a disk"}, "command": {"cmd": f"echo '{LINE}'; exit 1"}})
    assert run.failure is not None
    assert (run.failure.kind, run.failure.evidence, run.failure.hint) == ("config", LINE, "buy a disk")
