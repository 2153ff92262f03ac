"""The section `tpu`, and what is found before a job is submitted, without a cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from tpux import TpuxError
from tpux_slurm.preflight import seconds
from tpux_slurm.section import SlurmTpuSection
from tpux_slurm.states import fields_of, in_words, why_never
from tpux_testing.sandbox import Sandbox


@pytest.mark.parametrize("option", ["--job-name=x", "-Jx", "--comment=a", "--arr=1-3", "-d5", "--requeue", "--wrap=ls"])
def test_options_that_tpux_sets_are_refused_with_their_position(option: str) -> None:
    """The beginning of an option's name counts as well, as for sbatch."""
    with Sandbox() as sandbox, pytest.raises(TpuxError, match=r"tpu\.sbatch\[1\]|tpux sets --"):
        sandbox.job({"tpu": {"allocation_mode": "slurm", "sbatch": ["--constraint=v100", option]}})


def test_other_mistakes() -> None:
    """Slices, memory of whole nodes, and words that are no options."""
    for wrong in ({"node_count": 2}, {"mem": "1G"}, {"sbatch": ["v100"]}, {"time": "soon"}, {"partition": "-x"}):
        with pytest.raises(ValueError, match=r"node_count|exclusive|not an option|time|partition"):
            SlurmTpuSection.model_validate({"allocation_mode": "slurm", **wrong})


def test_storage_is_durable_and_home_is_not() -> None:
    """Only the directory that all nodes share outlives them."""
    assert SlurmTpuSection(storage="/shared").durable_paths() == ["/shared"]
    assert SlurmTpuSection().durable_paths() == []
    assert SlurmTpuSection(nodes=3).count_workers() == 3


def test_time_limits() -> None:
    """Minutes, with seconds, hours or days."""
    limits = {
        "90": 5400,
        "1:30": 90,
        "2:00:00": 7200,
        "1-0": 86400,
        "1-02:30": 95400,
        "infinite": None,
        "UNLIMITED": None,
    }
    assert {text: seconds(text) for text in limits} == limits


def test_words_for_reasons_and_fields() -> None:
    """A reason is explained, or is one that never ends; values may have blanks."""
    assert "in use" in in_words("Resources")
    assert "limit" in in_words("AssocMaxJobsLimit")
    assert in_words("SomethingNew") == "SomethingNew"
    assert "tpu.nodes" in why_never("PartitionNodeLimit")
    assert not why_never("QOSMaxJobsPerUserLimit")
    fields = fields_of("JobId=1 Comment=a b JobState=RUNNING Reason=None")
    assert (fields["Comment"], fields["JobState"]) == ("a b", "RUNNING")


def test_no_slurm_on_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message says where to create the job."""
    from tpux_slurm.commands import SlurmError, checked

    with pytest.raises(SlurmError, match="sinfo is not in PATH") as raised:
        checked({"PATH": str(tmp_path)}, ["sinfo"])
    assert "login node" in raised.value.hint


def test_munge_and_a_controller_that_is_down(tmp_path: Path) -> None:
    """Both are errors for people, with a remedy where there is one."""
    from tpux_slurm.commands import SlurmError, checked

    for said, expected in {
        "sbatch: error: Munge encode failed: Failed to access socket": "munged must run",
        "Unable to contact slurm controller (connect failure)": "",
    }.items():
        (tmp_path / "squeue").write_text(f"#!/bin/sh\necho '{said}' >&2\nexit 1\n")
        (tmp_path / "squeue").chmod(0o755)
        with pytest.raises(SlurmError) as raised:
            checked({"PATH": f"{tmp_path}:/usr/bin:/bin"}, ["squeue"])
        assert expected in raised.value.hint
