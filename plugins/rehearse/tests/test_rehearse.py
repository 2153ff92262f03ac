"""`tpux rehearse` with real programs: those that resume, and those that do not, each in its own way."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conftest import Tpux

TRAINS = """
save() { echo $step > "$HOME/new"; mv "$HOME/new" "$TPUX_OUTPUT_DIR/step"; }  # it may be preempted in between
step=0
ON_RESUME
while [ $step -lt STEPS ]; do
  step=$((step + 1))
  EACH_STEP
  echo "step $step loss 0.$((1000 - step))"
  sleep 0.1
done
AT_THE_END
"""
RESUMES = '[ $TPUX_RESUME = 0 ] || { step=$(cat "$TPUX_PREVIOUS_OUTPUT_DIR/step"); echo "restored step $step"; }'


def config(
    tpux: Tpux, *, on_resume: str = RESUMES, each_step: str = "save", at_the_end: str = "", steps: int = 10000
) -> str:
    cmd = TRAINS.replace("ON_RESUME", on_resume).replace("EACH_STEP", each_step)
    cmd = cmd.replace("AT_THE_END", at_the_end).replace("STEPS", str(steps))
    return tpux.config(json.dumps({"command": {"cmd": cmd}}))


def rehearse(tpux: Tpux, *arguments: str, code: int = 0) -> dict:
    report = json.loads(tpux("rehearse", *arguments, "--json", code=code).stdout)
    kept = Path(report["output"])
    assert json.loads((kept / "report.json").read_text()) == report
    assert_nothing_is_left(tpux, kept)
    return report


def assert_nothing_is_left(tpux: Tpux, kept: Path) -> None:
    assert kept.parent == tpux.home / "rehearsals"
    assert not (kept / "store").exists()
    assert not (tpux.home / "jobs").exists(), "the user's own store is not used"
    tpux.until(lambda: not processes_below(tpux.home), "for the supervisor that was stopped to end")


def processes_below(home: Path) -> list[int]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if str(home / "rehearsals").encode() in (process / "environ").read_bytes():
                found.append(int(process.name))
        except OSError:
            continue
    return found


@pytest.mark.system
def test_a_program_that_resumes_each_time(tpux: Tpux) -> None:
    report = rehearse(tpux, config(tpux), "--preempt-after", "2s", "--times", "2")
    assert (report["verdict"], report["passed"]) == ("resumed", True)
    first, second = report["interruptions"]
    for one in (first, second):
        assert one["kind"] == "preempted"
        assert one["resumed"] is True
        assert one["checkpoint_files"] == ["step"]
        assert one["printed"][0].startswith("restored step ")
        assert one["last_step"] >= one["first_step_after"] - 1
    assert second["last_step"] > first["last_step"]
    logs = Path(report["output"]) / "rehearsed/logs"
    assert sorted(path.name for path in logs.glob("attempt-*")) == ["attempt-1", "attempt-2", "attempt-3"]
    assert (logs / "attempt-2/command_worker_0.log").read_text().startswith("restored step ")


@pytest.mark.system
def test_a_program_that_computes_the_same_as_an_undisturbed_one(tpux: Tpux) -> None:
    path = config(tpux, steps=60)
    report = rehearse(tpux, path, "--preempt-after", "2s", "--times", "1", "--compare", "loss {value}")
    assert report["comparison"] == {
        "pattern": "loss {value}",
        "rehearsed": "0.940",
        "undisturbed": "0.940",
        "equal": True,
    }
    whole = (Path(report["output"]) / "undisturbed/logs/attempt-1/command_worker_0.log").read_text()
    assert whole.splitlines()[-1] == "step 60 loss 0.940"


@pytest.mark.system
def test_a_program_that_resumes_with_another_result(tpux: Tpux) -> None:
    path = config(tpux, steps=60, at_the_end='echo "final loss 0.$((10 + TPUX_STAGE))"')
    arguments = [path, "--preempt-after", "2s", "--times", "1", "--compare", "final loss {value}"]
    report = rehearse(tpux, *arguments, code=1)
    assert (report["verdict"], report["passed"]) == ("resumed", False)
    assert (report["comparison"]["rehearsed"], report["comparison"]["undisturbed"]) == ("0.11", "0.10")
    near = rehearse(tpux, *arguments, "--tolerance", "0.2")
    assert (near["comparison"]["equal"], near["passed"]) == (True, True)


EMULATED = "{{allocation_mode: {mode}, accelerator: v4-16, pricing: spot}}"
# The workers share the output directory: one of them saves.
SAVES = 'if [ "$TPUX_WORKER" = 0 ]; then save; fi'
# The first attempt of the rehearsed job does not end by itself; the undisturbed job is another one.
WAITS = "[ $TPUX_JOB_ID-$TPUX_ATTEMPT-$step != 000001-1-20 ] || sleep 1000"


def can_emulate() -> str:
    if os.geteuid() != 0:
        return "isolated workers need root"
    return "" if shutil.which("sshd") or Path("/usr/sbin/sshd").exists() else "sshd is not installed"


@pytest.mark.system
@pytest.mark.skipif(bool(can_emulate()), reason=can_emulate())
@pytest.mark.parametrize("mode", ["tpu-vm", "queued-resources", "local"])
def test_a_program_on_emulated_tpu_vms(tpux: Tpux, mode: str) -> None:
    path = config(tpux, each_step=f"{SAVES}; {WAITS}", steps=60)
    given = [path, f"tpu.={EMULATED.format(mode=mode)}", "--emulate", "--preempt-after", "5s", "--times", "1"]
    report = rehearse(tpux, *given, "--compare", "loss {value}")
    assert (report["verdict"], report["passed"]) == ("resumed", True)
    [one] = report["interruptions"]
    assert (one["kind"], one["checkpoint_files"]) == ("preempted", ["step"])
    assert one["printed"][0].startswith("restored step ")
    assert report["comparison"]["undisturbed"] == "0.940"
    events = (Path(report["output"]) / "rehearsed/events.jsonl").read_text()
    assert "t1v-" in events, "the machines are the emulator's"


@pytest.mark.system
@pytest.mark.skipif(bool(can_emulate()), reason=can_emulate())
def test_a_program_on_emulated_tpu_vms_that_saves_in_its_home_directory(tpux: Tpux) -> None:
    on_resume = '[ $TPUX_RESUME = 0 ] || { step=$(cat "$HOME/ckpt" 2>/dev/null || echo 0); }'
    path = config(tpux, on_resume=on_resume, each_step='echo $step > "$HOME/ckpt"')
    given = [path, f"tpu.={EMULATED.format(mode='tpu-vm')}", "--emulate", "--preempt-after", "5s", "--times", "1"]
    report = rehearse(tpux, *given, "--notice", "2s", code=1)
    assert report["verdict"] == "not-resumed"
    seen = "\n".join([*report["seen"], *report["interruptions"][0]["seen"]])
    assert "which a preemption deletes: " in seen
    assert "/ckpt" in seen


@pytest.mark.system
def test_a_program_that_starts_over(tpux: Tpux) -> None:
    path = config(tpux, on_resume='echo "no checkpoint found"', each_step='echo $step > "$HOME/ckpt"')
    done = tpux("rehearse", path, "--preempt-after", "4s", "--times", "1", code=1)
    assert "the program did not resume: it started over at attempt 2" in done.stdout
    assert "seen: the first step after the resume is 1" in done.stdout
    assert "seen: no file in $TPUX_OUTPUT_DIR was written before the end of attempt 1" in done.stdout
    assert "which a preemption deletes: " in done.stdout
    assert "/ckpt" in done.stdout
    assert "command has no resume_args, resume_cmd or stage_args" in done.stdout
    assert "seen: it printed: no checkpoint found" in done.stdout
    assert "see docs/program-environment.md#resuming" in done.stdout
    [kept] = (tpux.home / "rehearsals").iterdir()
    assert f"output: {kept}" in done.stdout


def test_an_option_that_is_nearly_right(tpux: Tpux) -> None:
    """The command also takes keys of the config, such as local.preempt_after, which is not what is meant."""
    done = tpux("rehearse", config(tpux), "--preemptafter", "5s", code=2)
    assert "'--preempt-after'" in done.stderr
    assert "local.preempt_after" not in done.stderr


@pytest.mark.system
def test_a_pattern_of_checkpoints_that_matches_nothing(tpux: Tpux) -> None:
    done = tpux("rehearse", config(tpux), "command.checkpoint=step-*", "--preempt-after", "2s", "--times", "1", code=1)
    assert (
        "attempt 2 was started from scratch (TPUX_RESUME=0): nothing matches command.checkpoint, step-*" in done.stdout
    )
    assert "no resume_args" not in done.stdout, "the script reads the variables itself"


@pytest.mark.system
def test_a_program_that_fails_after_the_preemption(tpux: Tpux) -> None:
    path = config(tpux, on_resume='[ $TPUX_RESUME = 0 ] || { echo "corrupt checkpoint"; exit 3; }')
    report = rehearse(tpux, path, "--preempt-after", "2s", code=1)
    assert report["verdict"] == "failed"
    assert report["message"].startswith("the program failed in attempt 2, after the preemption of attempt 1: ")
    assert "it printed: corrupt checkpoint" in report["seen"]


def test_a_program_that_fails_before_the_preemption(tpux: Tpux) -> None:
    report = rehearse(tpux, config(tpux, on_resume="echo no data; exit 3"), "--preempt-after", "1h", code=1)
    assert report["message"].startswith("the program failed in attempt 1, before the first preemption: ")
    assert report["interruptions"] == []


def test_a_program_that_ends_before_the_preemption(tpux: Tpux) -> None:
    report = rehearse(tpux, config(tpux, steps=2), "--preempt-after", "1h", "--compare", "loss {value}", code=1)
    assert (report["verdict"], report["comparison"]) == ("too-short", None)
    assert report["seen"] == ["take a shorter --preempt-after"]


@pytest.mark.system
def test_a_program_that_ends_before_all_preemptions(tpux: Tpux) -> None:
    report = rehearse(tpux, config(tpux, steps=25), "--preempt-after", "2s", "--times", "3", code=1)
    count = len(report["interruptions"])
    assert (report["verdict"], report["passed"]) == ("too-short", False)
    assert f"only {count} of 3 preemptions took place" in report["seen"]


@pytest.mark.system
def test_a_program_that_saves_in_its_first_attempt_only(tpux: Tpux) -> None:
    each_step = '[ "$TPUX_ATTEMPT" != 1 ] || save; [ ! -e "$TPUX_PREVIOUS_OUTPUT_DIR/step" ] || '
    path = config(tpux, each_step=each_step + 'cp "$TPUX_PREVIOUS_OUTPUT_DIR/step" "$TPUX_OUTPUT_DIR/step"')
    report = rehearse(tpux, path, "--preempt-after", "2s", "--times", "2", code=1)
    assert [one["resumed"] for one in report["interruptions"]] == [True, False]
    assert report["message"].startswith("the program did not resume: nothing was saved in attempt 2")


@pytest.mark.system
def test_a_program_without_steps(tpux: Tpux) -> None:
    path = tpux.config("command: {cmd: 'while :; do echo working; sleep 0.1; done'}")
    report = rehearse(tpux, path, "--preempt-after", "2s", "--times", "1", code=1)
    assert report["verdict"] == "unknown"
    assert report["page"] == "docs/program-environment.md#progress"
    assert any("progress.step=" in text for text in report["seen"])


@pytest.mark.system
def test_a_program_that_saves_only_at_the_notice(tpux: Tpux) -> None:
    path = config(tpux, on_resume=f"trap 'save; echo saved; exit 0' TERM\n{RESUMES}", each_step=":")
    report = rehearse(tpux, path, "--preempt-after", "2s", "--times", "1", "--notice", "1m")
    assert (report["verdict"], report["interruptions"][0]["lost_steps"]) == ("resumed", 0)
    without = tpux("rehearse", path, "--preempt-after", "2s", "--times", "1", code=1)
    assert "no file in $TPUX_OUTPUT_DIR was written" in without.stdout


@pytest.mark.system
def test_a_stop_and_a_restart(tpux: Tpux) -> None:
    report = rehearse(tpux, config(tpux), "--restart", "--preempt-after", "2s")
    [one] = report["interruptions"]
    assert (report["verdict"], one["kind"], one["resumed"]) == ("resumed", "stopped", True)


@pytest.mark.system
def test_a_restart_that_starts_over(tpux: Tpux) -> None:
    report = rehearse(tpux, config(tpux, on_resume=":"), "--restart", "--preempt-after", "2s", code=1)
    assert report["verdict"] == "not-resumed"


def test_ctrl_c_ends_the_job_and_keeps_its_output(tpux: Tpux) -> None:
    process = tpux.popen("rehearse", config(tpux), "--preempt-after", "1h")
    tpux.until(lambda: any((tpux.home / "rehearsals").glob("*/store/jobs/*/*/logs/attempt-1/command_worker_0.log")))
    tpux.until(lambda: len(processes_below(tpux.home)) > 1)
    process.send_signal(signal.SIGINT)
    _out, err = process.communicate(timeout=100)
    assert process.returncode in {1, 130}
    assert b"Traceback" not in err
    [kept] = (tpux.home / "rehearsals").iterdir()
    assert f"the output of the rehearsal is kept in {kept}".encode() in err
    assert (kept / "rehearsed/logs/attempt-1/command_worker_0.log").read_text().startswith("step 1 ")
    assert_nothing_is_left(tpux, kept)


@pytest.mark.system
def test_the_next_rehearsal_ends_one_whose_command_was_killed(tpux: Tpux) -> None:
    process = tpux.popen("rehearse", config(tpux), "--preempt-after", "1h")
    tpux.until(lambda: any((tpux.home / "rehearsals").glob("*/store/jobs/*/*/logs/attempt-1/command_worker_0.log")))
    process.kill()
    process.communicate()
    [killed] = (tpux.home / "rehearsals").iterdir()
    path = tpux.config("command: {cmd: 'echo step 1'}", "other.yaml")
    done = tpux("rehearse", path, code=1)
    assert f"ending the rehearsal {killed.name}, whose command was killed" in done.stderr
    assert (killed / "rehearsed/logs/attempt-1/command_worker_0.log").read_text().startswith("step 1 ")
    assert_nothing_is_left(tpux, killed)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.yaml"], "missing.yaml"),
        (["job.yaml", "command.grace=1"], "unknown key 'command.grace'"),
        (["job.yaml", "--compare", "loss"], "write {value} once"),
        (["job.yaml", "--tolerance", "1"], "--tolerance needs --compare"),
        (["job.yaml", "--notice", "soon"], "--notice: 'soon' is not a duration"),
        (["job.yaml", "--restart", "--times", "2"], "--times has no effect with --restart"),
        (["job.yaml", "--restart", "--notice", "30s"], "--notice has no effect with --restart"),
        (["job.yaml", "--times", "0"], "0 is not in the range"),
    ],
)
def test_mistakes(runner: Tpux, arguments: list[str], message: str) -> None:
    runner.config("command: {cmd: 'true'}")
    done = runner("rehearse", *arguments, code=2)
    assert message in done.stderr
    assert not (runner.home / "rehearsals").exists()
