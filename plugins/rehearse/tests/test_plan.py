"""How a config is changed for a rehearsal, and how the values of two runs are compared."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tpux_rehearse.attempts import LONGEST_LINE, RehearsedAttempt, read_lines, read_output
from tpux_rehearse.plan import Preemptions, plan_rehearsal, undisturbed
from tpux_rehearse.report import compare

if TYPE_CHECKING:
    from pathlib import Path

LOCAL = "local.={preempt_after: 60.0s, preempt_times: 3}"


def plan(config: dict, *given: str, listeners: tuple[str, ...] = (), preemptions: Preemptions | None = None):
    return plan_rehearsal(config, given, preemptions or Preemptions(60.0, 3), listeners=listeners)


def test_a_config_for_a_cloud_runs_on_local_workers_with_its_own_output_directory() -> None:
    config = {
        "job": {"output_dir": "gs://b/runs", "loop": True, "env_type": "venv"},
        "tpu": {"allocation_mode": "tpu-vm", "pricing": "ondemand"},
        "gcsfuse": {"bucket_name": "b"},
        "ssh": {},
    }
    made = plan(config, "tpu.accelerator=v4-8")
    assert made.overrides == (
        "tpu.accelerator=v4-8",
        "job.loop=false",
        "setup.modules=[ssh, venv]",
        "tpu.pricing=spot",
        "tpu.allocation_mode=local",
        LOCAL,
        "job.output_dir=null",
    )
    assert undisturbed(made).overrides[-2:] == ("local.={}", "job.output_dir=null")
    assert "the output directory is one of the rehearsal, in place of gs://b/runs" in made.notes
    assert "set up as in the config: venv" in made.notes


def test_listed_modules_keep_their_order() -> None:
    config = {"setup": {"modules": ["script", "gcsfuse", "code"]}, "tpu": {"pricing": "spot"}}
    assert "setup.modules=[script, code]" in plan(config).overrides


def test_listeners_get_no_events_but_a_plugin_that_the_job_uses_remains() -> None:
    config = {"plugins": {"disabled": ["log"]}, "job": {"rule": "mine"}}
    assert plan(config, listeners=("mail", "mine")).overrides[0] == "plugins.disabled=[log, mail]"


def test_the_rule_and_an_output_directory_of_the_user_are_kept() -> None:
    made = plan({"job": {"rule": "pass", "output_dir": "/data"}}, "job.output_dir=/data")
    assert made.overrides == ("job.output_dir=/data", "tpu.allocation_mode=local", LOCAL)


def test_notice_and_restart() -> None:
    with_notice = plan({}, preemptions=Preemptions(5.0, 1, 30.0))
    assert with_notice.overrides[-1] == "local.={preempt_after: 5.0s, preempt_times: 1, preempt_notice: 30.0s}"
    assert plan({}, preemptions=Preemptions(5.0, restart=True)).overrides == ("tpu.allocation_mode=local", "local.={}")


@pytest.mark.parametrize(
    ("one", "other", "tolerance", "equal"),
    [
        ("0.31", "0.31", None, True),
        ("0.31", "0.310", None, False),
        ("0.31", "0.310", 0.0, True),
        ("1.00", "1.01", 0.005, False),
        ("1.00", "1.01", 0.02, True),
        ("nan", "nan", None, True),
        ("abc", "abd", 1.0, False),
    ],
)
def test_values_are_the_same_as_printed_or_within_the_tolerance(
    one: str, other: str, tolerance: float | None, *, equal: bool
) -> None:
    lines = [["loss 7", f"final  loss: {value}, done"] for value in (one, other)]
    found = compare("loss: {value}", *lines, tolerance)
    assert (found.rehearsed, found.undisturbed, found.equal) == (one, other, equal)


def test_a_value_that_is_not_printed_is_not_equal() -> None:
    assert not compare("loss {value}", ["step 1"], ["step 1"], 1.0).equal


def test_a_long_line_is_compared_whole_and_shown_cut(tmp_path: Path) -> None:
    logs = [tmp_path / name for name in ("one", "other")]
    for log, value in zip(logs, ("0.311", "0.312"), strict=True):
        log.write_text(f"loss {value.rjust(LONGEST_LINE, '0')}\n")
    found = compare("loss {value}", *(read_lines({0: log}) for log in logs), None)
    assert not found.equal
    attempt = RehearsedAttempt(1, False, "", "")
    read_output(attempt, {0: logs[0]}, tmp_path)
    assert [len(line) for line in (*attempt.printed, *attempt.last_lines)] == [LONGEST_LINE] * 2
