"""Patterns of the config: which failure they stand for, and when a program counts as finished."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tpux import WorkerExit
from tpux.fields import find_line
from tpux.lifecycle.programs import command_process
from tpux.model.program_output import read_times
from tpux_log import LogSection, classify_failure
from tpux_testing import attempt, detector_contract, hooks_contract, job, run_job, section_contract
from tpux_testing.sandbox import Sandbox, SandboxJob

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


def test_a_line_about_a_lost_machine_does_not_outrank_an_earlier_failure(tmp_path):
    full = f"echo the buffer is full; touch {tmp_path}/failed; exit 1"
    late = f"{UNTIL.format(tmp_path / 'failed')}; sleep 1; echo bad chip; exit 1"
    config = {
        "job": {"rule": "pre"},
        "tpu": {"node_count": 2},
        "log": {"failed": {"host-lost": "bad chip", "out-of-memory": "is full"}},
        "command": {"cmd": f"if [ $TPUX_WORKER = 1 ]; then {full}; fi; {late}"},
    }
    ended = run_job(config)
    assert (ended.state, ended.attempts) == ("failed", 1), "no new machines are requested"
    assert (ended.failure.kind, ended.failure.worker, ended.failure.others) == ("out-of-memory", 1, 1)


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


@pytest.mark.parametrize("goes_on", [False, True])
def test_it_does_not_count_if_another_worker_had_failed_just_before_in_the_same_poll(tmp_path, goes_on):
    go, failed, printed, last = (tmp_path / name for name in ("go", "failed", "printed", "last"))
    late = f"{UNTIL.format(failed)}; sleep 0.5; echo Training complete; touch {printed}"
    late += f"; {UNTIL.format(last)}; echo bye" * goes_on
    cmd = f"echo step 1; if [ $TPUX_WORKER = 1 ]; then {UNTIL.format(go)}; touch {failed}; exit 3; fi; {late}; exit 1"
    with Sandbox() as sandbox:
        job = sandbox.start({**FINISHED, "tpu": {"node_count": 2}, "command": {**TRUSTED, "cmd": cmd}})
        job.until(lambda _: job.output(0) and job.output(1))
        go.touch()
        for path in [printed] if goes_on else [printed, *exit_codes(job)]:  # nothing is polled meanwhile
            while not path.exists():
                time.sleep(0.05)
        job.until(lambda state: "Training complete" in job.output(0) and state.endings)
        last.touch()
        state = job.until(lambda state: state.ended)
    assert (state.state, state.failure and state.failure.worker) == ("failed", 1)


def exit_codes(job: SandboxJob) -> list[Path]:
    """Return the files on the workers with the exit codes of the program."""
    workers = job.controller.begin().machines.workers
    return [Path(one.details["home"], command_process(job.controller.begin(), one.index).exit) for one in workers]


def test_it_counts_if_another_worker_failed_after_it_was_fetched_as_the_next_line_was_written(tmp_path):
    fetched = f"until grep -rqs '^Training complete' {tmp_path} --include command_worker_0.log; do sleep 0.05; done"
    cmd = f"if [ $TPUX_WORKER = 0 ]; then echo Training complete; fi; {fetched}; echo bye; exit $((1 + TPUX_WORKER))"
    command = {**TRUSTED, "cmd": cmd}
    ended = run_job({**FINISHED, "tpu": {"node_count": 2}, "command": command}, home=tmp_path)
    assert (ended.state, ended.failure) == ("succeeded", None)


def test_it_counts_if_another_worker_failed_after_it(tmp_path):
    late = f"{UNTIL.format(tmp_path / 'done')}; sleep 1; exit 3"
    ended = run(f"if [ $TPUX_WORKER = 1 ]; then {late}; fi; echo Training complete; touch {tmp_path}/done", workers=2)
    assert ended.state == "succeeded"


def test_what_a_program_prints_later_does_not_move_the_line_behind_failures_that_it_came_before(tmp_path):
    fetched = f"until grep -rqs '^Training complete' {tmp_path} --include command_worker_0.log; do sleep 0.05; done"
    crashed = f"echo Training complete; {UNTIL.format(tmp_path / 'crashed')}; sleep 1"
    command = {
        **TRUSTED,
        "cmd": f"if [ $TPUX_WORKER = 1 ]; then {fetched}; touch {tmp_path}/crashed; kill -SEGV $$; fi\n"
        f"{crashed}; echo DEADLINE_EXCEEDED: Barrier timed out; exit 1",
    }
    ended = run_job({**FINISHED, "tpu": {"node_count": 2}, "command": command}, home=tmp_path)
    assert (ended.state, ended.failure) == ("succeeded", None)


def test_a_program_that_hangs_after_it_finished_has_finished_although_its_stack_is_saved():
    program = "import time; print('Training complete', flush=True); time.sleep(1000)"
    ended = run(f'exec {sys.executable} -c "{program}"', job={"stalled_after": 2}, watch={"poll_every": 0.2})
    assert "tpux: the stack of process" in ended.output[0]
    assert (ended.state, ended.failure) == ("succeeded", None)


def test_a_line_that_a_program_prints_when_it_is_ended_does_not_count():
    program = "trap 'echo Training complete; exit 0' TERM; echo step 1; sleep 1000 & wait"
    command = {"grace_period": 20}
    ended = run(program, command=command, job={"stalled_after": 2}, watch={"poll_every": 0.2})
    assert "Training complete" in ended.output[0]
    assert (ended.state, ended.failure.kind) == ("failed", "stalled")


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


def test_the_time_of_a_line_is_that_at_which_its_piece_of_the_output_was_fetched(tmp_path):
    log, times = tmp_path / "command_worker_0.log", tmp_path / "command_worker_0.times"
    pieces = [b"step 1\r\n" * 10_000, b"caf\xe9 done \nok\n", b"step 2\n", b"caf\xe9 done\n"]
    log.write_bytes(b"".join(pieces))
    lengths = [sum(map(len, pieces[:count])) for count in range(len(pieces))]
    times.write_text("".join(f"{1000 + 10 * at}.25 {length}\n" for at, length in enumerate(lengths)) + "torn")
    ended = WorkerExit(0, 1, log, at=1025.0)
    lines = [find_line(ended.tail(), pattern) for pattern in ("^step 1", "^caf. done", "^ok", "^step 2")]
    assert [ended.time_of(line) for line in lines] == [1000.25, 1010.25, 1010.25, 1020.25]
    assert replace(ended, at=1015.0).time_of("step 2") == 1015.0  # its worker's clock says when it ended
    assert ended.time_of("no such line") == 1025.0
    times.unlink()
    assert ended.time_of("step 2") == 1025.0


def test_the_time_of_a_line_is_found_without_reading_the_times_of_a_week(tmp_path):
    log, times = tmp_path / "command_worker_0.log", tmp_path / "command_worker_0.times"
    with log.open("wb") as file:
        file.truncate(6_048_000)
        file.seek(0, 2)
        file.write(b"step 1\n" * 1000 + b"Training complete\n")
    times.write_text("".join(f"{1000 + 10 * entry}.25 {100 * entry}\n" for entry in range(60_481)))
    ended = WorkerExit(0, 1, log, at=1e6)
    before = _bytes_read()
    assert ended.time_of("Training complete") == 605_800.25
    assert _bytes_read() - before < 128 * 1024
    times.write_text("".join(f"{1000 + 10 * entry}.25 {6_055_017 + entry}\n" for entry in range(-1, 60_480)))
    assert ended.time_of("Training complete") == 990.25, "in the first of many blocks"
    assert read_times(log)[:2] == [(990.25, 6_055_016), (1000.25, 6_055_017)]


def _bytes_read() -> int:
    return int(Path("/proc/self/io").read_text().split()[1])
