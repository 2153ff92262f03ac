"""Patterns of the config: which failure they stand for, and when a program counts as finished."""

from __future__ import annotations

import pytest

from tpux.testing import attempt, detector_contract, hooks_contract, job, run_job, section_contract
from tpux_log import LogSection, classify_failure

FINISHED = {"log": {"finished": "^Training complete"}}
TRUSTED = {"finished_by": ["log"], "grace_period": 0}
UNTIL = "until [ -e {} ]; do sleep 0.05; done"


def run(cmd, *, workers=1, trusted=True, **sections):
    command = {"cmd": cmd, **(TRUSTED if trusted else {}), **sections.pop("command", {})}
    return run_job({**FINISHED, "tpu": {"node_count": workers}, "command": command, **sections})


def test_contracts():
    config = {"log": {"finished": "^Training complete", "failed": {"infra": "lost the data server"}}}
    hooks_contract("log")
    section_contract("log", config["log"])
    detector_contract("log", {"lost the data server at 10.0.0.1": "infra"}, config=config)


def test_finished_counts_only_with_finished_by():
    assert LogSection(finished="done", failed={"infra": "lost"}).needs_finished_by() == ["finished"]
    assert LogSection(failed={"infra": "lost"}).needs_finished_by() == []


def test_the_first_pattern_that_matches_counts_on_workers_that_failed():
    patterns = {"out-of-memory": ["is full", "exhausted"], "infra": "lost \\w+"}
    section = LogSection.model_validate({"failed": patterns})
    ended = attempt({0: "lost it\nbuffer exhausted", 1: "lost peer\r\n", 2: "lost"}, {0: 1, 1: 1, 2: 0})
    found = classify_failure(job({}), section, ended)
    assert [(one.kind, one.worker, one.evidence) for one in found] == [
        ("out-of-memory", 0, "buffer exhausted"),
        ("infra", 1, "lost peer"),
    ]
    assert classify_failure(job({}), None, ended) == []


@pytest.mark.parametrize("pattern", ["(", "x*", ""])
def test_an_invalid_pattern_is_an_error_of_the_config(pattern):
    with pytest.raises(Exception, match="finished"):
        job({"log": {"finished": pattern}})


def test_a_line_cannot_show_a_preemption():
    with pytest.raises(Exception, match="only the cloud says that machines are preempted") as error:
        job("log:\n  failed: {infra: x, preempted: y}\ncommand: {cmd: x}")
    assert ":2:33: log.failed.preempted" in str(error.value)


@pytest.mark.parametrize(("trusted", "state"), [(True, "succeeded"), (False, "failed")])
def test_a_program_that_finished_and_crashed_in_teardown_has_succeeded_if_the_config_trusts_it(trusted, state):
    ended = run("echo Training complete; kill -SEGV $$", trusted=trusted)
    assert ended.state == state
    if trusted:
        [end] = [event for event in ended.events if event.type == "attempt-ended"]
        assert (end.failure, end.finished) == (None, "Training complete")
    else:
        assert (ended.failure.kind, ended.failure.code) == ("program", 139)
        assert ended.failure.evidence == "exit code 139 (SIGSEGV): Training complete"


def test_it_does_not_count_if_another_worker_had_failed_before(tmp_path):
    late = f"{UNTIL.format(tmp_path / 'failed')}; sleep 1; echo Training complete"
    ended = run(f"if [ $TPUX_WORKER = 1 ]; then touch {tmp_path}/failed; exit 3; fi; {late}; exit 1", workers=2)
    assert (ended.state, ended.failure.worker, ended.failure.code, ended.failure.others) == ("failed", 1, 3, 1)


def test_it_counts_if_another_worker_failed_after_it(tmp_path):
    late = f"{UNTIL.format(tmp_path / 'done')}; sleep 1; exit 3"
    ended = run(f"if [ $TPUX_WORKER = 1 ]; then {late}; fi; echo Training complete; touch {tmp_path}/done", workers=2)
    assert ended.state == "succeeded"


def test_a_program_that_is_silent_after_it_finished_is_ended():
    ended = run("echo Training complete; sleep 1000", workers=2, watch={"straggler_grace": 1, "poll_every": 0.2})
    assert ended.state == "succeeded"
    assert "has finished and is silent: Training complete" in ended.logs["tpu.log"]


def test_a_program_that_is_silent_before_it_finished_is_not_ended(tmp_path):
    ended = run(
        f"sleep 4; echo Training complete; touch {tmp_path}/reached; exit 1",
        watch={"straggler_grace": 1, "poll_every": 0.2},
    )
    assert ended.state == "succeeded"
    assert (tmp_path / "reached").exists()


def test_exit_code_0_without_it_is_incomplete_if_the_config_requires_it():
    required = {"require_finished": True}
    ended = run("echo step 3 of 100", command=required)
    assert (ended.state, ended.failure.kind) == ("failed", "incomplete")
    assert ended.failure.evidence == "exit code 0 on all workers, but log does not report that it finished"
    assert run("echo Training complete", command=required).state == "succeeded"
    assert run("echo step 3 of 100").state == "succeeded"
