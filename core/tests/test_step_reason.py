"""The one-line reason of a set-up step that failed: the cause, not the last line printed."""

from __future__ import annotations

from pathlib import Path

import pytest
from ruamel.yaml import YAML

from tpux import Result, sh
from tpux.remote.tasks import describe_failure

OUTPUTS = YAML(typ="safe").load(Path(__file__).with_name("step_outputs.yaml"))


@pytest.mark.parametrize("case", OUTPUTS, ids=lambda case: case["says"][0][:40])
def test_the_reason_is_the_cause(case):
    reason = describe_failure(sh("# install\nfalse"), Result(1, case["output"].encode()), lines=3)
    assert reason.startswith("`install` exited with 1: ")
    for text in case["says"]:
        assert text in reason
    assert "\n" not in reason
    assert len(reason) < 700
