"""`tpux exec` of a job: where its program starts, and in its environment."""

from __future__ import annotations

import json
import shlex

import pytest

CODE = "code: code\nvenv: {path: own env}\njob: {env_type: venv, environment: {FLAG: true, GREETING: it's}}\n"
COMMAND = "command: {cmd: 'echo ready; pwd; exec sleep 1000', grace_period: 1s, env: {KEY: '${env:KEY}', SAME: cmd}}\n"
SHOW = "pwd; command -v python; echo $FLAG.$GREETING.$SAME.$KEY.$TPUX_WORKER.$TPUX_ATTEMPT"


@pytest.fixture
def job(tpux):
    (tpux.work / "code").mkdir()
    (tpux.work / "code/train.py").write_text("")
    tpux.env["KEY"] = "secret"
    job = tpux.create(f"tpu: {{accelerator: v4-16}}\n{CODE}{COMMAND}")
    tpux.until(lambda: all(b"ready\n" in tpux.output_so_far(job, worker) for worker in (0, 1)))
    return job


def test_a_command_starts_where_the_program_does_and_in_its_environment(tpux, job):
    answers = json.loads(tpux("exec", job, "--json", SHOW).stdout)
    for worker, answer in enumerate(answers):
        home = tpux.machines(job) / f"worker-{worker}"
        directory, python, variables = answer["output"].splitlines()
        assert f"ready\n{directory}\n".encode() == tpux.output_so_far(job, worker)
        assert directory.startswith(f"{home}/.tpux/code/jobs/")
        assert python == f"{home}/own env/bin/python"
        assert variables == f"true.it's.cmd..{worker}.1", "no secret is given"
    words = tpux("exec", job, "--worker", "1", "--", "echo", "a  'b", "$HOME", ";").stdout
    assert words == "[1] a  'b $HOME ;\n"
    bare = tpux("exec", job, "--host", "--worker", "0", SHOW, code=None).stdout
    home = tpux.machines(job) / "worker-0"
    assert bare.startswith(f"[0] {home}\n")
    assert "own env" not in bare
    assert bare.endswith("[0] .....\n")


def test_an_environment_or_a_directory_that_is_not_there_is_named_with_the_way_out(tpux, job):
    home = tpux.machines(job) / "worker-0"
    (home / "own env").rename(home / "env.old")
    done = tpux("exec", job, "--worker", "0", "echo ran", code=127)
    assert f"cannot activate the environment {home}/own env" in done.stdout
    assert f"tpux exec {int(job)} --host" in done.stderr
    assert "ran\n" not in done.stdout
    (home / "env.old").rename(home / "own env")
    [directory] = (path for path in (home / ".tpux/code/jobs").iterdir() if path.is_dir())
    directory.rename(directory.with_name("moved"))
    done = tpux("exec", job, "--worker", "0", "echo ran", code=126)
    assert "is not there" in done.stdout
    assert f"tpux exec {int(job)} --host" in done.stderr
    again = shlex.split(done.stderr.partition("hint: ")[2].rpartition("tpux ")[2])
    assert tpux(*again[:-1], "--worker", "0", "echo ran").stdout == "[0] ran\n"
    directory.with_name("moved").rename(directory)


def test_before_the_set_up_is_complete_a_command_is_not_started_there(tpux):
    (tpux.work / "wait.sh").write_text("until [ -e ~/go ]; do sleep 0.1; done\n[ ! -e ~/bad ]\n")
    job = tpux.create("script: wait.sh\njob: {rule: pass}\ncommand: {cmd: exec sleep 1000, grace_period: 0}\n")
    tpux.until_state(job, "setting-up")
    done = tpux("exec", job, "echo ran", code=2)
    assert "error: the set-up of job 1 is not complete: it is setting-up\n" in done.stderr
    assert "tpux logs -f 1; --host runs it on the bare machine" in done.stderr
    assert tpux("exec", job, "--host", "touch go; echo ran").stdout == "[0] ran\n"
    tpux.until_state(job, "running")
    assert tpux("exec", job, "echo ran").stdout == "[0] ran\n"
    tpux("stop", job)
    assert tpux("exec", job, "echo ran").stdout == "[0] ran\n"


def test_after_a_set_up_that_has_failed_or_was_stopped(tpux):
    (tpux.work / "wait.sh").write_text("until [ -e ~/go ]; do sleep 0.1; done; echo broken; exit 3\n")
    job = tpux.create(
        "tpu: {keep_on_failure: 1h}\nscript: wait.sh\njob: {rule: pass}\nsetup: {tries: 1}\ncommand: {cmd: 'true'}\n"
    )
    tpux.until_state(job, "setting-up")
    tpux("stop", job)
    assert "not complete: it is stopped" in tpux("exec", job, "echo ran", code=2).stderr
    (tpux.machines(job) / "worker-0/go").touch()
    tpux("resume", job)
    tpux("wait", job, code=100)
    assert "not complete: it has failed" in tpux("exec", job, "echo ran", code=2).stderr
    (tpux.work / "wait.sh").write_text("true\n")
    tpux("resume", job, "--sync")
    tpux("wait", job)
