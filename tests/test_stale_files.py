"""What is stored with a job (code, files, config) and its source, which the user has edited meanwhile."""

from __future__ import annotations

import re
import shlex

import pytest

pytestmark = pytest.mark.system

CODE = "code: .\njob: {rule: pass}\ncommand: {cmd: 'cat train.py; exit 3'}\n"
SCRIPT = "script: setup.sh\njob: {rule: pass}\ncommand: {cmd: 'cat said; exit 3'}\n"
CHANGED = "changed since it was stored with the job"


@pytest.fixture
def project(tpux):
    """Give the job's config a directory of its own, so that the code is another one."""
    (tpux.work / "train.py").write_text("one\n")
    (tpux.work / "setup.sh").write_text("echo one >said\n")
    return tpux.work


def failed(tpux, text: str, *overrides: str) -> str:
    job = tpux.create(text, *overrides)
    tpux("wait", job, code=100)
    return job


def test_nothing_is_said_where_nothing_differs(tpux, project):
    job = failed(tpux, CODE + "script: setup.sh\n")
    (project / "train.py").touch()
    assert CHANGED not in tpux("show", job).stdout
    assert tpux.show(job)["changed_sources"] == []
    assert CHANGED not in tpux("resume", job).stderr
    tpux("wait", job, code=100)


@pytest.mark.parametrize("action", ["resume", "rerun"])
def test_edited_code_is_named_with_the_command_that_takes_it(tpux, project, action):
    job = failed(tpux, CODE)
    (project / "train.py").write_text("two\n")
    (project / "new.py").write_text("")
    said = tpux(action, job).stderr
    assert f"code (new.py, train.py) has {CHANGED}" in said
    command = f"tpux stop {int(job)} && tpux {action} {int(job)} --sync"
    assert command in said
    tpux("wait", job, code=100)
    tpux(action, job, "--sync")
    tpux("wait", job, code=100)
    assert [tpux.output(job, attempt=attempt) for attempt in (2, 3)] == [b"one\n", b"two\n"]
    assert CHANGED not in tpux(action, job).stderr
    tpux("wait", job, code=100)
    assert tpux.output(job, attempt=4) == b"two\n", "the new code stays"


def test_a_removed_file_and_one_that_can_be_executed_now_differ(tpux, project):
    (project / "gone.py").write_text("")
    job = failed(tpux, CODE)
    (project / "gone.py").unlink()
    (project / "setup.sh").chmod(0o755)
    assert tpux.show(job)["changed_sources"] == ["code (gone.py, setup.sh)"]


def test_show_and_the_command_that_follows_say_it_after_a_failure(tpux, project):
    text = CODE.replace("exit 3", "echo two >$SOURCE; exit 3")
    tpux.env["SOURCE"] = str(project / "train.py")
    text = text.replace("$SOURCE", "${env:SOURCE}")
    said = tpux("run", tpux.config(text), code=100).stderr
    assert f"code (train.py) has {CHANGED}: tpux resume 1 --sync" in said
    assert f"code (train.py) has {CHANGED}: tpux resume 1 --sync" in tpux("show", "1").stdout
    assert tpux.show("1")["changed_sources"] == ["code (train.py)"]


def test_a_copied_file_is_taken_anew_by_a_sync_only(tpux, project):
    (project / "configs").mkdir()
    (project / "configs/job.yaml").write_text(SCRIPT)
    done = tpux("run", "configs/job.yaml", code=100)  # the script is in the current directory, not beside the config
    assert CHANGED not in done.stderr
    (project / "setup.sh").write_text("echo two >said\n")
    said = tpux("resume", "1", "command.cmd=cat said; exit 4").stderr
    assert f"{project}/setup.sh has {CHANGED}: tpux stop 1 && tpux resume 1 --sync" in said
    tpux("wait", "1", code=100)
    tpux.work = project / "configs"
    tpux("resume", "1", "--sync")
    tpux("wait", "1", code=100)
    assert [tpux.output("000001", attempt=attempt) for attempt in (2, 3)] == [b"one\n", b"two\n"]
    assert CHANGED not in tpux("resume", "1").stderr
    tpux("wait", "1", code=100)
    tpux.work = project
    (project / "setup.sh").unlink()
    assert CHANGED not in tpux("rerun", "1").stderr, "there is nothing that could be taken"
    tpux("wait", "1", code=100)
    assert f"file not found: {project}/setup.sh" in tpux("resume", "1", "--sync", code=2).stderr


def test_an_edited_config_is_named_with_its_arguments(tpux, project):
    job = failed(tpux, CODE, "command.cmd=echo $A; exit 3", "job.environment={A: x y}")
    config = project / "job.yaml"
    config.write_text(CODE + "watch: {poll_every: 0.5s}\n")
    said = tpux("resume", job).stderr
    assert f"{config}, code (job.yaml) have changed since they were stored with the job" in said
    tpux("wait", job, code=100)
    [command] = re.findall("&& tpux (.*)", said)
    assert shlex.split(command) == [
        *("resume", str(int(job)), "--config", str(config), "command.cmd=echo $A; exit 3"),
        *("job.environment={A: x y}", "--sync"),
    ]
    tpux(*shlex.split(command))
    tpux("wait", job, code=100)
    assert tpux.output(job, attempt=3) == b"x y\n"
    assert tpux.show(job)["changed_sources"] == []


def test_another_config_says_that_the_code_is_the_stored_one(tpux, project):
    job = failed(tpux, CODE)
    (project / "train.py").write_text("two\n")
    config = tpux.config(CODE.replace("exit 3", "exit 4"), "other.yaml")
    said = tpux("resume", job, "--config", config).stderr
    assert re.search(rf"note: code: unchanged snapshot of \d+-\d+-\d+ \d+:\d+: {project}: 3 files", said)
    assert f"code (other.yaml, train.py) has {CHANGED}: tpux stop {int(job)} && tpux resume" in said
    tpux("wait", job, code=100)
    said = tpux("resume", job, "--config", config, "--sync").stderr
    assert f"note: code: {project}: 4 files" in said
    assert CHANGED not in said
    tpux("wait", job, code=100)
    assert [tpux.output(job, attempt=attempt) for attempt in (2, 3)] == [b"one\n", b"two\n"]


def test_a_restart_with_sync_takes_code_and_files(tpux, project):
    text = CODE.replace("exit 3", "cat said; exec sleep 1000").replace("command: {", "command: {grace_period: 1s, ")
    job = tpux.create(f"{text}script: {{path: setup.sh, check: 'true'}}\n".replace("cat said", "cat ~/said"))
    tpux.until(lambda: tpux.output_so_far(job) == b"one\none\n")
    (project / "train.py").write_text("two\n")
    said = tpux("restart", job, "-y").stderr
    assert f"code (train.py) has {CHANGED}: tpux restart {int(job)} --sync" in said
    tpux.until(lambda: tpux.output_so_far(job, attempt=2) == b"one\none\n")
    (project / "setup.sh").write_text("echo two >said\n")
    tpux("restart", job, "-y", "--sync")
    tpux.until(lambda: tpux.output_so_far(job, attempt=3) == b"two\ntwo\n")
    (project / "setup.sh").unlink()
    assert "file not found" in tpux("restart", job, "-y", "--sync", code=2).stderr
    assert tpux.show(job)["state"] == "running", "the program was not stopped"


def test_the_branch_of_a_repository_on_this_machine(tpux, project):
    from tests.test_code import git

    git(project, "init", "--quiet", "--initial-branch=main")
    git(project, "add", "train.py")
    git(project, "commit", "--quiet", "--message", "first")
    job = failed(tpux, CODE.replace("code: .", "code: {repo: ., branch: main}"))
    (project / "train.py").write_text("two\n")
    assert tpux.show(job)["changed_sources"] == [], "what is not committed is not part of it"
    git(project, "commit", "--quiet", "--all", "--message", "second")
    commit = git(project, "rev-parse", "HEAD")[:10]
    assert tpux.show(job)["changed_sources"] == [f"code (refs/heads/main is at {commit})"]
    tpux("resume", job, "--sync")
    tpux("wait", job, code=100)
    assert tpux.output(job, attempt=2) == b"two\n"


def test_of_several_jobs_a_warning_names_its_own(project, tpux):
    text = "code: .\njob: {rule: pass}\ncommand: {cmd: 'exit 3; sleep 1 &'}\n"
    failed(tpux, text), failed(tpux, text)
    done = tpux("rerun", "1", "2", "--sync")
    for job in "12":
        assert done.stderr.count(f"tpux: warning: job {job}: ") == 1
