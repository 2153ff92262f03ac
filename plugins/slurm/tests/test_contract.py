"""The contracts of the plugin: with a real cluster, as `tpux plugins check` runs them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tpux_slurm.contract_fixture import why_not
from tpux_testing import CommandLine, hooks_contract


def test_hooks() -> None:
    """Check the hooks."""
    hooks_contract("slurm")


@pytest.mark.system
@pytest.mark.skipif(bool(why_not()), reason=why_not() or "-")
def test_plugins_check(tpux_cli: CommandLine, tmp_path: Path) -> None:
    """All contracts pass on the cluster that the command starts, which leaves nothing."""
    config = tmp_path / "slurm.yaml"
    config.write_text("tpu: {allocation_mode: slurm, nodes: 2}\ncommand: 'true'\n")
    results = tpux_cli.json("plugins", "check", "tpux-plugin-slurm", "--config", str(config))
    assert [(result["contract"], result["outcome"]) for result in results] == [
        ("slurm: declaration", "ok"),
        ("slurm: hooks_contract", "ok"),
        ("slurm: section_contract", "ok"),
        ("slurm: allocator_contract", "ok"),
        ("slurm: transport_contract", "ok"),
    ], results
