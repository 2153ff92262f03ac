"""Jobs from start to end through the command line, with real processes and faults."""

from __future__ import annotations

import hashlib
import os
import signal
import time
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


def test_quickstart_is_preempted_once_and_finishes(tpux):
    done = tpux("run", str(EXAMPLES / "quickstart.yaml"))
    job = tpux.json("list")[0]["id"]
    shown = tpux.show(job)
    assert shown["state"] == "succeeded"
    assert shown["preemptions"] == 1
    assert shown["attempt"] == 2
    assert shown["stage"] == 1
    for worker in range(4):
        assert f"[{worker}] resumed at step" in done.stdout
        assert f"[{worker}] done: y = " in done.stdout
    assert "preempted" in done.stderr


@pytest.mark.parametrize(("script", "code", "state"), [("exit 0", 0, "succeeded"), ("exit 3", 100, "failed")])
def test_run_exits_with_the_jobs_result(tpux, script, code, state):
    tpux("run", tpux.config(f"command:\n  cmd: echo hello; {script}\n"), code=code)
    assert tpux.json("list")[0]["state"] == state


def test_a_failure_names_the_worker_and_the_cause(tpux):
    job = tpux.create("tpu: {accelerator: v4-16}\ncommand: {cmd: 'echo all is lost; [ $TPUX_WORKER = 0 ] || exit 7'}\n")
    waited = tpux("wait", job, code=100)
    failure = tpux.show(job)["failure"]
    assert failure["kind"] == "program"
    assert f"hint: {failure['hint']}" in waited.stderr
    assert failure["worker"] == 1
    assert "exit code 7" in failure["evidence"]
    assert "all is lost" in failure["evidence"]


def test_killing_the_supervisor_loses_no_output(tpux):
    gate = "[ $i != 20 ] || until [ -e $HOME/../go ]; do sleep 0.1; done"
    script = f"echo start >> $HOME/../starts; for i in $(seq 1 30); do echo line $i; sleep 0.1; {gate}; done"
    job = tpux.create(f"tpu: {{accelerator: v4-16}}\ncommand:\n  cmd: {script}\n")
    tpux.until(lambda: b"line 5" in _output(tpux, job))
    os.kill(tpux.supervisor(), signal.SIGKILL)
    (tpux.machines(job) / "go").touch()
    time.sleep(0.5)
    tpux("wait", job)
    expected = "".join(f"line {i}\n" for i in range(1, 31)).encode()
    for worker in (0, 1):
        assert tpux.output(job, worker) == expected
    assert len(tpux.events(job, "attempt-started")) == 1
    starts = next(tpux.directory(job).glob("machines/*/starts")).read_text()
    assert starts == "start\nstart\n"


def _output(tpux, job):
    try:
        return tpux.output(job)
    except (FileNotFoundError, StopIteration):
        return b""


def test_stop_ends_daemons_and_resume_continues(tpux):
    script = "trap '' TERM; setsid sleep 1000 & setsid sleep 1000 & echo $!; while :; do sleep 0.1; done"
    job = tpux.create(f"command:\n  cmd: |\n    {script}\n  grace_period: 1s\n")
    tpux.until(lambda: _output(tpux, job).strip())
    daemon = int(_output(tpux, job))
    tpux("stop", job)
    tpux("wait", job, code=103)
    assert not Path(f"/proc/{daemon}").exists() or "Z" in Path(f"/proc/{daemon}/stat").read_text()
    tpux("resume", job)
    tpux.until(lambda: tpux.events(job, "attempt-started")[-1]["attempt"] == 2)
    assert tpux.events(job, "attempt-started")[-1]["stage"] == 1
    tpux("stop", job)


def test_binary_output_is_stored_unchanged(tpux):
    script = "head -c 3000000 /dev/urandom > $HOME/x; cat $HOME/x; sha256sum < $HOME/x > $HOME/../sum"
    job = tpux.create(f"command:\n  cmd: {script}\n")
    tpux("wait", job)
    expected = next(tpux.directory(job).glob("machines/*/sum")).read_text().split()[0]
    assert hashlib.sha256(tpux.output(job)).hexdigest() == expected


def test_allowed_daemons_do_not_keep_a_job_from_ending(tpux):
    job = tpux.create(
        "command:\n  cmd: |\n    setsid sleep 1000 & echo $! ; exit 0\n  grace_period: 1s\n",
        "command.allow_left=[sleep]",
    )
    tpux("wait", job)
    daemon = int(tpux.output(job))
    tpux.until(lambda: not Path(f"/proc/{daemon}").exists() or "Z" in Path(f"/proc/{daemon}/stat").read_text())


def test_a_corrupt_state_is_rebuilt_from_the_events(tpux):
    job = tpux.create("command: {cmd: 'true'}\n")
    tpux("wait", job)
    tpux.until_done()
    before = tpux.show(job)
    (tpux.directory(job) / "state.json").write_text("{ this is no json")
    assert tpux.show(job) == before


def test_a_torn_last_event_is_ignored(tpux):
    job = tpux.create("command: {cmd: 'exit 1'}\n")
    tpux("wait", job, code=100)
    tpux.until_done()
    with (tpux.directory(job) / "events.jsonl").open("a") as file:
        file.write('{"type": "state-changed", "to": "pend')
    assert tpux.show(job)["state"] == "failed"
    tpux("resume", job)
    tpux("wait", job, code=100)
    assert tpux.show(job)["attempt"] == 2


def test_only_selected_workers_run(tpux):
    job = tpux.create(
        "tpu: {accelerator: v4-32}\ncommand: {cmd: echo $TPUX_WORKER of $TPUX_NUM_WORKERS, workers: [1, 3]}"
    )
    tpux("wait", job)
    assert tpux.output(job, 1) == b"1 of 2\n"
    assert tpux.output(job, 3) == b"3 of 2\n"
    assert not (tpux.directory(job) / "logs/attempt-1/command_worker_0.log").exists()


def test_a_secret_is_in_one_file_until_the_job_is_done(tpux):
    tpux.env["THE_KEY"] = "s3cr3t-value"
    job = tpux.create(
        'command:\n  cmd: |\n    key="${env:THE_KEY}"; echo ${#key}; until [ -e $HOME/../go ]; do sleep 0.1; done\n'
    )
    tpux.until(lambda: _output(tpux, job) == b"12\n")
    assert [path.name for path in _files_with_secret(tpux)] == ["secrets.json"]
    assert _files_with_secret(tpux)[0].stat().st_mode & 0o777 == 0o600
    next(tpux.directory(job).glob("machines/*/worker-0")).with_name("go").touch()
    tpux("wait", job)
    tpux.until(lambda: _files_with_secret(tpux) == [])


def _files_with_secret(tpux):
    return [path for path in tpux.home.rglob("*") if path.is_file() and b"s3cr3t-value" in path.read_bytes()]


def test_an_incomplete_line_is_printed(tpux):
    script = "for i in $(seq 12); do printf tick; sleep 0.25; done; until [ -e $HOME/../go ]; do sleep 0.1; done"
    run = tpux.popen("run", tpux.config(f"command:\n  cmd: {script}\n"))
    assert run.stdout.readline().startswith(b"[0] tick")  # the program is still running
    next(tpux.home.glob("jobs/*/*/machines/*/worker-0")).with_name("go").touch()
    run.communicate(timeout=60)
    assert run.returncode == 0


def test_a_stop_right_after_a_rerun_stops_the_job(tpux):
    job = tpux.create("command: {cmd: '[ $TPUX_ATTEMPT = 1 ] || sleep 1000', grace_period: 0}\n")
    tpux("wait", job)
    tpux("rerun", job)
    tpux("stop", job)
    tpux("wait", job, code=103)
    tpux("resume", job)
    tpux.until_state(job, "running")
    tpux("stop", job)
