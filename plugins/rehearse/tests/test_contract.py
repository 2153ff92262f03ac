"""The command keeps its contract."""

from __future__ import annotations

import pytest

from tpux_testing import CommandLine, command_contract


@pytest.mark.system
def test_command(tpux_cli: CommandLine) -> None:
    (tpux_cli.work / "job.yaml").write_text("command: {cmd: 'echo step 1'}\n")
    wrong = [["none.yaml"], ["job.yaml", "--compare", "loss"], ["job.yaml", "--notice", "soon"]]
    command_contract("rehearse", ["job.yaml", "--json"], wrong=wrong, cli=tpux_cli)
