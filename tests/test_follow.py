"""Output of `run`, `logs` and `wait`; interrupting them leaves the job running."""

from __future__ import annotations

import itertools
import os
import re
import signal
import subprocess

import pytest

from tpux.cli import tail
from tpux.store import Store

GATED = "echo up; until [ -e GO ]; do sleep 0.05; done; echo down"


@pytest.fixture
def gated(tpux):
    """A config whose program waits for a file."""
    script = GATED.replace("GO", str(tpux.work / "go"))
    return tpux.config(f"tpu: {{accelerator: v4-16}}\ncommand: {{cmd: '{script}'}}\n")


def test_ctrl_c_leaves_the_job_running(tpux, gated):
    run = tpux.popen("run", gated)
    assert run.stdout.readline().endswith(b"] up\n")  # printed while the job runs
    os.killpg(run.pid, signal.SIGINT)
    _, err = run.communicate(timeout=60)
    assert run.returncode == 1, err
    assert b"tpux stop 1" in err
    assert b"tpux logs -f 1" in err
    assert b"Traceback" not in err
    assert tpux.show("1")["state"] == "running"
    (tpux.work / "go").touch()
    tpux("wait", "1")
    assert tpux.output("000001", 1) == b"up\ndown\n"


def test_an_interrupted_restart_continues_and_says_so(tpux):
    go = tpux.work / "go"
    saves = f"trap 'until [ -e {go} ]; do sleep 0.05; done; exit 0' TERM; echo up; while :; do sleep 0.05; done"
    job = tpux.create(f'command: {{cmd: "{saves}", grace_period: 60s}}\n')
    tpux.until(lambda: tpux.output_so_far(job))
    restart = tpux.popen("restart", job, "-y")
    tpux.until_state(job, "stopping")
    os.killpg(restart.pid, signal.SIGINT)
    said = restart.communicate(timeout=60)[1].decode()
    assert f"the restart continues without this command: tpux logs -f {int(job)}\n" in said
    assert restart.returncode == 130
    go.touch()
    tpux.until(lambda: tpux.output_so_far(job, attempt=2) == b"up\n")
    tpux("stop", job)


@pytest.mark.parametrize("dies", ["the command", "both"])
def test_a_restart_whose_command_dies_starts_the_program_again(tpux, dies):
    tpux.env["TPUX_TEST_OWN_PROCESS"] = "1"
    go = tpux.work / "go"
    saves = f"trap 'until [ -e {go} ]; do sleep 0.05; done; exit 0' TERM; echo up; while :; do sleep 0.05; done"
    job = tpux.create(f'command: {{cmd: "{saves}", grace_period: 60s}}\n')
    tpux.until(lambda: tpux.output_so_far(job))
    restart = tpux.popen("restart", job, "-y")
    tpux.until_state(job, "stopping")
    restart.kill()
    restart.communicate(timeout=60)
    if dies == "both":
        os.kill(tpux.supervisor(), signal.SIGKILL)
    go.touch()
    if dies == "both":
        tpux("supervisor", "start")
    tpux.until(lambda: tpux.output_so_far(job, attempt=2) == b"up\n")
    tpux("stop", job)


def test_a_closed_pipe_leaves_the_job_running(tpux, gated):
    run = tpux.popen("run", gated)
    assert run.stdout.readline()
    run.stdout.close()
    (tpux.work / "go").touch()
    err = run.stderr.read()
    assert run.wait(timeout=60) == 1
    assert b"output closed; job 1 keeps running" in err
    assert b"Traceback" not in err
    assert b"Exception ignored" not in err
    tpux("wait", "1")


def test_final_output_is_printed_before_the_end_of_the_attempt(tpux):
    config = tpux.config("command: {cmd: 'for i in $(seq 1000); do echo line $i; done; exit 4'}\n")
    run = tpux.popen("run", config, stderr=subprocess.STDOUT)
    lines = run.communicate(timeout=60)[0].decode().splitlines()
    assert run.returncode == 100
    assert next(i for i, line in enumerate(lines) if "ended: exit code 4" in line) > lines.index("[0] line 1000")


def test_the_output_of_short_attempts_is_printed(tpux):
    tpux.env["TPUX_CLOCK_RATE"] = "20"  # delays and polls are short
    rule = "job: {rule: resume, max_restarts: {program: 1}}\n"
    config = tpux.config(f"{rule}command: {{cmd: 'echo attempt $TPUX_ATTEMPT; printf %s end; exit 3'}}\n")
    done = tpux("run", config, code=100)
    assert done.stdout.splitlines() == ["[0] attempt 1", "[0] end", "[0] attempt 2", "[0] end"]
    printed = re.findall(r"^tpux: (setting-up|running|recovering|failed)\b", done.stderr, re.MULTILINE)
    order = [phase for phase, _ in itertools.groupby(printed)]  # a phase may have several lines
    assert order == ["setting-up", "running", "recovering", "setting-up", "running", "failed"]


def test_logs(tpux):
    tpux.env["TPUX_CLOCK_RATE"] = "20"  # delays and polls are short
    script = 'echo out $TPUX_WORKER $TPUX_ATTEMPT; printf "no end"; exit $((2 - TPUX_ATTEMPT))'
    rule = "job: {rule: resume, max_restarts: {program: 1}}"
    text = f"{rule}\ntpu: {{accelerator: v4-16}}\ncommand: {{cmd: '{script}'}}\n"
    tpux("run", tpux.config(text))
    both = "[0] out 0 2\n[0] no end\n[1] out 1 2\n[1] no end\n"
    assert tpux("logs", "1").stdout == both
    assert tpux("logs", "1", "-f").stdout in {both, "[1] out 1 2\n[1] no end\n[0] out 0 2\n[0] no end\n"}
    assert tpux("logs", "1", "--worker", "1").stdout == "out 1 2\nno end"
    assert tpux("logs", "1", "--worker", "1", "--attempt", "1").stdout == "out 1 1\nno end"
    assert tpux("logs", "1", "-f", "--worker", "1").stdout == "[1] out 1 2\n[1] no end\n"
    assert re.search(r"ready: job-000001-[0-9a-f]{4}, 2 worker\(s\)", tpux("logs", "1", "--module", "tpu").stdout)
    errors = {
        "--worker 7": "workers 0, 1",
        "--attempt 9": "attempt 9",
        "--module x": "--module tpu",
        "-f --attempt 1": "-f",
    }
    for options, words in errors.items():
        assert words in tpux("logs", "1", *options.split(), code=2).stderr


FAILING = """
from tpux import hookimpl, sh
@hookimpl
def check(): yield sh("false")
@hookimpl
def setup(): yield sh("echo trying; false")
"""


def test_logs_of_a_job_without_output(tpux):
    tpux.plugin(
        "tpux-never",
        """
        from tpux import Released, Waiting, hookimpl
        @hookimpl
        def provision(request): return Waiting("in the queue", 0.2)
        @hookimpl
        def release(request): return Released()
        """,
        entries="never = tpux_never",
    )
    job = tpux.create("tpu: {allocation_mode: never}\ncommand: {cmd: 'true'}\n")
    hint = tpux("logs", job, code=2).stderr.splitlines()[-1]
    assert hint.endswith("tpux logs -f 1 waits for output"), "after the other logs, if the supervisor has begun one"
    follow = tpux.popen("logs", "-f", job)
    assert any(b"in the queue" in line for line in follow.stderr), "it follows before the stop"
    tpux("stop", job)
    assert follow.wait(timeout=60) == 103


def test_the_hint_where_the_program_has_no_log_names_the_logs_that_there_are(tpux):
    tpux.plugin("tpux-prep", FAILING, entries="prep = tpux_prep")
    tpux("run", tpux.config("setup: {modules: [prep]}\ncommand: {cmd: 'true'}\n"), code=100)
    (tpux.directory("000001") / "logs/attempt-1").mkdir(exist_ok=True)  # as where the attempt has just begun
    done = tpux("logs", "1", code=2)
    assert done.stderr == (
        "tpux: error: job 1 has no log of its program\n  hint: it has other logs: --module prep or tpu\n"
    )
    tpux("resume", "1", "setup.modules=[]")
    tpux("wait", "1")
    [number] = [event["attempt"] for event in tpux.events("000001", "attempt-started")]
    assert (
        f"it has other logs: --attempt {number}, --module prep or tpu\n"
        in tpux("logs", "1", "--attempt", "9", code=2).stderr
    )


@pytest.mark.parametrize("command", ["logs", "wait"])
def test_only_a_command_that_prints_the_output_asks_for_it_soon(tpux, command):
    job = tpux.create("command: {cmd: 'echo begun; sleep 1000', grace_period: 1s}\n")
    tpux.until(lambda: tpux.output_so_far(job))
    follow = tpux.popen(command, *(["-f"] if command == "logs" else []), job)
    record = Store(tpux.home).record(job, tpux.directory(job).parent.name)
    if command == "logs":
        tpux.until(record.is_read)
    else:
        with pytest.raises(subprocess.TimeoutExpired):
            follow.wait(timeout=2)
        assert not record.is_read()
    follow.kill()
    follow.wait(timeout=60)
    assert not record.is_read(), "a reader that was killed reads no more"
    tpux("stop", job)


def test_wait_for_several_jobs(tpux):
    texts = {"good": "true", "bad": "exit 1"}
    good, bad = (tpux.create(f"command: {{cmd: '{cmd}'}}\n") for cmd in texts.values())
    stopped = tpux.create("command: {cmd: sleep 1000, grace_period: 1s}\n")
    tpux("wait", good)
    tpux("wait", good, bad, code=100)
    assert f"job {int(stopped)}" in tpux("wait", good, stopped, "--timeout", "0.5", code=1).stderr
    tpux("stop", stopped)
    tpux("wait", good, stopped, code=103)
    tpux("wait", stopped, bad, code=100)
    assert [row["state"] for row in tpux.json("wait", good)] == ["succeeded"]
    tpux("wait", good, "77", code=2)


def test_only_the_output_of_the_last_minutes(tpux, gated):
    job = tpux.json("create", gated)["id"]
    tpux.until(lambda: {tpux.output_so_far(job, worker) for worker in (0, 1)} == {b"up\n"}, "for the first lines")
    times = [tpux.directory(job) / f"logs/attempt-1/command_worker_{worker}.times" for worker in (0, 1)]
    assert [path.read_text().split()[1] for path in times] == ["0", "0"]
    for path in times:  # written an hour ago
        path.write_text("1000 0\n")
        os.utime(path, (1000, 1000))
    (tpux.work / "go").touch()
    tpux("wait", job)
    assert tpux("logs", job, "--since", "10m").stdout == "[0] down\n[1] down\n"
    assert tpux("logs", job, "--since", "10m", "--worker", "1").stdout == "down\n"
    assert tpux("logs", job, "-f", "--since", "10m", "-w", "1").stdout == "[1] down\n"
    assert tpux("logs", job, "--since", "yesterday", "-w", "1").stdout == "down\n"
    assert "such as 10:00" in tpux("logs", job, "--since", "soon", code=2).stderr
    assert tpux("logs", job, "--since", "36500d", "--worker", "1").stdout == "up\ndown\n"
    log = times[1].with_suffix(".log")
    os.utime(log, (1000, 1000))
    assert tpux("logs", job, "--since", "1h", "--worker", "1").stdout == ""
    assert "omit --module" in tpux("logs", job, "--since", "1h", "--module", "tpu", code=2).stderr


def test_an_incomplete_line_is_printed_in_parts_only_after_a_long_time(tmp_path, monkeypatch):
    now, log = 1000.0, tmp_path / "log"
    monkeypatch.setattr(tail.time, "monotonic", lambda: now)
    plain, redrawn = tail.Tail(log, 0), tail.Tail(log, 0, redraws=True)

    def written(text):
        with log.open("ab") as file:
            file.write(text)
        return plain.read(), redrawn.read()

    assert written(b"one\ntwo") == ([b"one"], [b"one"])
    assert redrawn.incomplete == "[0] two"
    now += tail.FLUSH_AFTER - 1
    assert written(b" three\r10%\r20%\r") == ([], [])
    assert redrawn.incomplete == "[0] 20%"
    now += 2
    assert written(b"30%") == ([b"two three\r10%\r20%\r30%"], [])
    assert redrawn.incomplete == "[0] 30%"
    assert written(b" end\nlast") == ([b" end"], [b"30% end"])
    assert (plain.read(flush=True), redrawn.read(flush=True)) == ([b"last"], [b"last"])
    assert (plain.incomplete, redrawn.incomplete) == ("", "")
