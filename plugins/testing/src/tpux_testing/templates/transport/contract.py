"""What tpux relies on, and a whole job, on this machine: workers are directories."""

from __future__ import annotations

from pathlib import Path

import pytest

from tpux_testing import hooks_contract, run_job, section_contract, transport_contract, worker

TPU = {"allocation_mode": "sample"}


@pytest.fixture
def section(tmp_path: Path) -> dict[str, list[str]]:
    """Return a section whose workers are directories."""
    (tmp_path / "ant").mkdir()
    return {"prefix": ["env", f"HOME={tmp_path}/{{}}"], "addresses": ["ant"]}


def test_contracts(section: dict[str, list[str]]) -> None:
    """The hooks and the keys; each method of the connection, byte for byte."""
    hooks_contract("sample")
    section_contract("sample", section)
    transport_contract("sample", worker(address="ant"), {"tpu": TPU, "sample": section})


def test_a_job(section: dict[str, list[str]]) -> None:
    """A job runs on a worker that the command reaches."""
    run = run_job({"tpu": TPU, "sample": section, "command": {"cmd": "basename $HOME"}})
    assert run.state == "succeeded", run.why
    assert run.output[0] == "ant\n"
