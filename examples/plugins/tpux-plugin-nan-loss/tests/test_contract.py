"""What tpux relies on, and a whole job, on this machine."""

from __future__ import annotations

import pytest
from pydantic import ValidationError
from tpux_nan_loss import NanLossSection, find, solve

from tpux import Failure
from tpux_testing import CommandLine, detector_contract, hooks_contract, section_contract, steps_of

LINE = "step 120 loss=nan"
PROGRAM = """
mkdir -p runs/step-100 runs/step-120 runs/step-130
echo step 119 loss=0.3; echo step 120 loss=nan; sleep 600
"""


def test_contracts() -> None:
    """The hooks and the keys; any log and exit code, and the example on any worker."""
    hooks_contract("nan-loss")
    section_contract("nan-loss")
    detector_contract("nan-loss", {LINE: "program"})


def test_only_a_loss_that_is_no_number_is_found() -> None:
    """Not words that begin like it."""
    assert find("step 1 loss 0.2\nstep 2 loss: Nancy\n", 0, None) is None
    assert find(f"step 1 loss 0.2\n{LINE}\nstep 121 loss=nan\n", 0, None).evidence == LINE


def test_nothing_is_moved_without_a_step_or_a_directory() -> None:
    """Every solver is called for every failure."""
    section = NanLossSection(checkpoints="~/runs")
    assert not steps_of(solve(Failure("tpu-busy", 0, evidence="busy"), section)).steps
    assert not steps_of(solve(Failure("program", 0, evidence=LINE), None)).steps


def test_a_pattern_without_the_step() -> None:
    """It is refused where it is written: the solver could not know which checkpoints to move."""
    with pytest.raises(ValidationError, match="group for the step"):
        NanLossSection(pattern="loss=nan")


@pytest.mark.parametrize("line", ["loss=nan", "step 1,200 loss=nan"])
def test_a_step_that_is_no_number(line: str) -> None:
    """Nothing is moved, and the solver does not fail."""
    section = NanLossSection(pattern=r"(?:step ([\d,]+) )?loss=nan", checkpoints="~/runs")
    assert find(line, 0, section) is not None
    assert not steps_of(solve(Failure("program", 0, evidence=line), section)).steps


def test_a_job_is_stopped_and_repaired(tpux_cli: CommandLine) -> None:
    """The running program is ended; `tpux solve` renames the checkpoints from the step on."""
    config = {"nan-loss": {"checkpoints": "runs"}, "watch": {"resources_every": 1}, "command": {"cmd": PROGRAM}}
    job = tpux_cli.run_job(config, keep=True)
    shown = tpux_cli.json("show", job)
    assert (shown["state"], shown["failure"]["evidence"]) == ("failed", LINE)
    assert "step-120" in tpux_cli("solve", job, "--dry-run").stdout
    tpux_cli("solve", job)
    names = {word for word in tpux_cli("exec", job, "ls", "runs").stdout.split() if "step" in word}
    assert names == {"step-100", "nan-step-120", "nan-step-130"}
