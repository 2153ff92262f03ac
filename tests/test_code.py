"""The module `code` in whole jobs: what the program runs, and what later edits change."""

from __future__ import annotations

import json
import os
import signal
import subprocess

import pytest

CONFIG = "code: .\ntpu: {accelerator: v4-16}\nlocal: {}\ncommand: {cmd: 'cat train.py; pwd'}\n"
POINTER = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 8\n"


def git(directory, *arguments: str) -> str:
    identity = ["-c", "user.name=Ann", "-c", "user.email=ann@example.com"]
    done = subprocess.run(["git", *identity, "-C", directory, *arguments], check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def project(tpux):
    """Make the working directory a git repository with one commit."""
    git(tpux.work, "init", "--quiet", "--initial-branch=main")
    (tpux.work / "train.py").write_text("one\n")
    git(tpux.work, "add", "train.py")
    git(tpux.work, "commit", "--quiet", "--message", "first")
    return tpux.work


def lines(tpux, job: str, attempt: int = 1, worker: int = 0) -> list[str]:
    return tpux.output(job, worker, attempt).decode().splitlines()


def test_the_command_starts_in_a_copy_of_the_directory(tpux, project):
    done = tpux("run", tpux.config(CONFIG))
    commit = git(project, "rev-parse", "HEAD")
    assert f"code: {project} at {commit[:10]} with 1 uncommitted change: 2 files, " in done.stderr
    for worker in (0, 1):
        text, directory = lines(tpux, "000001", worker=worker)
        assert (text, directory.split("/")[-4:-1]) == ("one", [".tpux", "code", "jobs"])
    resolved = tpux.show("1")["resolved"]["code"]
    assert (resolved["commit"], resolved["uncommitted"], resolved["directory"]) == (commit, 1, str(project))
    assert commit in tpux("show", "1").stdout


@pytest.mark.parametrize("change", [[], ["watch.poll_every=0.5s"]])
def test_later_edits_change_nothing_also_in_a_resume(tpux, project, change):
    job = tpux.create(CONFIG.replace("pwd", "pwd; exit 3"), "job.rule=pass")
    (project / "train.py").write_text("two\n")
    tpux("wait", job, code=100)
    tpux("resume", job, *change)
    tpux("wait", job, code=100)
    assert [lines(tpux, job, attempt)[0] for attempt in (1, 2)] == ["one", "one"]
    assert len(tpux.events(job, "config-changed")) == len(change)


def test_a_resume_with_another_section_takes_the_code_anew(tpux, project):
    job = tpux.create(CONFIG.replace("pwd", "ls; exit 3"), "job.rule=pass")
    tpux("wait", job, code=100)
    (project / "train.py").write_text("two\n")
    (project / "notes.txt").write_text("")
    (project / "elsewhere").mkdir()
    tpux.work = project / "elsewhere"  # `code: .` stays the directory in which the job was created
    tpux("resume", job, "code.={dir: ., exclude: [notes.txt]}")
    tpux("wait", job, code=100)
    tpux.work = project
    assert lines(tpux, job, 2) == ["two", "job.yaml", "train.py"]


def test_preflight_warns_about_links_and_about_code_without_files(tpux):
    (tpux.work / "links").mkdir()
    for number in range(7):
        (tpux.work / f"links/to-{number}").symlink_to("/data")
    (tpux.work / "links/loop").symlink_to(".")
    text = "code: {dir: links}\ncommand: {cmd: x}\n"
    shown = tpux("preflight", tpux.config(text)).stderr
    assert "not copied to the workers: to-0, to-1, to-2, to-3, to-4 and 2 more" in shown
    (tpux.work / "empty").mkdir()
    shown = tpux("preflight", tpux.config(text.replace("links", "empty"))).stderr
    assert "warning: code: no file is copied to the workers" in shown


def test_files_that_the_program_wrote_stay_and_files_that_were_deleted_go(tpux, project):
    (project / "old.py").write_text("")
    job = tpux.create(
        CONFIG.replace("cat train.py", "ls; echo x >checkpoint").replace("pwd", "exit 3"), "job.rule=pass"
    )
    tpux("wait", job, code=100)
    (project / "old.py").unlink()
    (project / "new").mkdir()
    (project / "new/a.py").write_text("")
    tpux("resume", job, "code.={dir: ., max_size: 1MB}")
    tpux("wait", job, code=100)
    assert lines(tpux, job, 2) == ["checkpoint", "job.yaml", "new", "train.py"]


def test_the_environment_starts_in_the_directory_too(tpux, project):
    tpux.plugin(
        "tpux-wrapper",
        """
        from dataclasses import replace
        from tpux import hookimpl

        @hookimpl
        def run(command):
            return replace(command, argv=("env", "WRAPPED=1", *command.argv))
        """,
        entries="wrapper = tpux_wrapper",
    )
    job = tpux.create(f"job: {{env_type: wrapper}}\n{CONFIG}".replace("pwd", "echo $WRAPPED"))
    tpux("wait", job)
    assert lines(tpux, job) == ["one", "1"]


@pytest.mark.system
def test_what_no_job_uses_is_removed_with_the_job(tpux, project):
    def stored() -> set[str]:
        return {path.stem for path in tpux.home.glob("code/snapshots/*.json")}

    first = tpux.create(CONFIG)
    (project / "train.py").write_text("two\n")
    second, third = tpux.create(CONFIG), tpux.create(CONFIG)
    used = {job: tpux.show(job)["resolved"]["code"]["snapshot"] for job in (first, second, third)}
    assert used[second] == used[third]
    assert stored() == {used[first], used[second]}
    sizes = {job["id"]: job["disk"] for job in tpux.json("list", "--disk")}
    assert sizes[second] > 0
    assert "DISK" in tpux("list", "--disk").stdout
    for path in tpux.home.glob("code/**/*"):
        os.utime(path, (1, 1))  # what was made in the last hour is kept
    tpux("delete", first, second, "-y")
    tpux.until(lambda: stored() == {used[third]}, "for the first job's code to be removed")
    tpux("delete", third, "-y")
    tpux.until(lambda: stored() == set(), "for the last job's code to be removed")


def test_nothing_is_removed_while_a_jobs_config_cannot_be_read(tpux, project):
    first = tpux.create(CONFIG)
    (project / "train.py").write_text("two\n")
    second = tpux.create(CONFIG)
    tpux("wait", first, second)
    stored = sorted(tpux.home.glob("code/snapshots/*.json"))
    (tpux.directory(first) / "resolved.json").rename(tpux.directory(first) / "moved")
    tpux("delete", second, "-y")
    tpux.until(lambda: "what no job uses is not removed" in tpux.log())
    assert sorted(tpux.home.glob("code/snapshots/*.json")) == stored
    assert len(stored) == 2


def test_a_full_disk_on_one_worker_is_reported_with_the_worker(tpux, project):
    tools = tpux.work.parent / "bin"
    tools.mkdir()
    tar = tools / "tar"
    tar.write_text(
        '#!/bin/sh\ncase $HOME in *worker-1) echo "tar: x: No space left on device" >&2; exit 2 ;; esac\n'
        'exec /usr/bin/env -u PATH PATH="${PATH#*:}" tar "$@"\n'
    )
    tar.chmod(0o755)
    tpux.env["PATH"] = f"{tools}{os.pathsep}{tpux.env['PATH']}"
    job = tpux.create(CONFIG, "setup.tries=1", "job.rule=pass")
    tpux("wait", job, code=100)
    failure = tpux.show(job)["failure"]
    assert (failure["kind"], failure["worker"]) == ("setup", 1)
    assert "unpack the code" in failure["evidence"]
    assert "No space left on device" in failure["evidence"]
    assert f"tpux logs {int(job)} --module code --worker 1" in failure["hint"]


SYNC = """#!/bin/sh
cd "$HOME/.tpux" && line=
[ ! -e "$(echo code/snapshots/[0-9a-f]*)" ] || line="$line snapshot"
[ ! -s "$(echo code/jobs/*.id)" ] || line="$line id"
[ ! -e ready/code ] || line="$line $(head -c 5 ready/code)"
echo "synced:$line" >>"$HOME/synced"
"""


@pytest.fixture
def fake_sync(tpux):
    """Let `sync` write down what there is before it."""
    tools = tpux.work.parent / "bin"
    tools.mkdir()
    (tools / "sync").write_text(SYNC)
    (tools / "sync").chmod(0o755)
    tpux.env["PATH"] = f"{tools}{os.pathsep}{tpux.env['PATH']}"


@pytest.mark.usefixtures("project", "fake_sync")
def test_files_are_on_the_disk_before_what_says_that_they_are_there(tpux):
    tpux("run", tpux.config(CONFIG))
    for worker in (0, 1):
        synced = (tpux.machines("000001") / f"worker-{worker}/synced").read_text().splitlines()
        assert synced == ["synced: being", "synced: snapshot being", "synced: snapshot id being"]


@pytest.mark.parametrize(
    ("section", "message", "hint"),
    [
        ("code: misspelled", "job.yaml:1:7: code: there is no directory /", ""),
        ("code: {dir: job.yaml}", "job.yaml is not a directory", ""),
        ("code: {dirr: .}", "unknown key 'code.dirr'", "did you mean 'dir'?"),
        ("code: {}", 'set dir (for example "code: .")', ""),
        ("code: {dir: ., max_size: 5}", "the largest files: job.yaml", "code.exclude"),
        ("setup: {modules: [code]}", "the code is missing", ""),
    ],
)
def test_mistakes(tpux, project, section, message, hint):
    done = tpux("create", tpux.config(f"{section}\ncommand: {{cmd: x}}\n"), code=None)
    assert done.returncode != 0
    assert message in done.stderr
    assert hint in done.stderr
    assert json.loads(tpux("list", "--json").stdout) == []


# --- sync and restart -----------------------------------------------------------------------------

RUNNING = CONFIG.replace("; pwd", "; exec sleep 1000").replace("command: {", "command: {grace_period: 1s, ")


SAVING = """
code: .
tpu: {accelerator: v4-16}
command:
  cmd: "cat train.py; trap 'until [ -e GO ]; do sleep 0.05; done; exit 0' TERM; while :; do sleep 0.05; done"
  grace_period: 60s
"""
"""A program that does not end before the file GO is there."""


def running(tpux, text: str = RUNNING) -> str:
    job = tpux.create(text)
    tpux.until(lambda: all(tpux.output_so_far(job, worker).startswith(b"one\n") for worker in (0, 1)))
    return job


def test_a_restart_runs_the_code_of_the_last_sync_and_no_other_module(tpux, project):
    tpux.plugin(
        "tpux-counter",
        "from tpux import hookimpl, sh\n@hookimpl\ndef check():\n    yield sh('echo checked >>~/checked')\n",
        entries="counter = tpux_counter",
    )
    job = running(tpux, f"setup: {{modules: [counter, code]}}\n{RUNNING}")
    (project / "train.py").write_text("two\n")
    (project / "elsewhere").mkdir()
    tpux.work = project / "elsewhere"
    done = tpux("sync", job)
    assert "sent to 2 of 2 workers" in done.stderr
    assert tpux.output(job) == b"one\n", "the running program keeps its code"
    (project / "train.py").write_text("three\n")
    supervisor = tpux.supervisor()
    tpux("restart", job, "-y")
    assert tpux.supervisor() == supervisor, "it waits for the second part of the restart"
    tpux.until(lambda: all(tpux.output_so_far(job, worker, 2) == b"two\n" for worker in (0, 1)))
    for worker in (0, 1):
        assert (tpux.machines(job) / f"worker-{worker}/checked").read_text() == "checked\n"
    assert tpux.show(job)["resolved"]["code"]["uncommitted"] > 0
    assert len(tpux.events(job, "resolution-updated")) == 1


def test_a_sync_restarts_the_program_and_shows_the_new_output_only(tpux, project):
    job = running(tpux, RUNNING.replace("exec sleep 1000", "until [ -e ~/go ]; do sleep 0.1; done"))
    (project / "train.py").write_text("two\n")
    process = tpux.popen("sync", job, "--restart", "-f")
    tpux.until(lambda: all(tpux.output_so_far(job, worker, 2) == b"two\n" for worker in (0, 1)))
    for worker in (0, 1):
        (tpux.machines(job) / f"worker-{worker}/go").touch()
    out, err = process.communicate(timeout=60)
    assert sorted(out.splitlines()) == [b"[0] two", b"[1] two"]
    assert process.returncode == 0
    assert b"sent to 2 of 2 workers\n" in err
    assert "-f shows the output after a restart" in tpux("sync", job, "-f", code=2).stderr


def test_dev_restarts_the_program_with_each_change_of_the_code(tpux, project):
    (project / ".gitignore").write_text("ignored\n")
    job = running(tpux, RUNNING.replace("exec sleep 1000", "until [ -e ~/go ]; do sleep 0.1; done"))
    process = tpux.popen("dev", job, "--pause", "0.1s", stderr=subprocess.STDOUT)
    assert process.stdout is not None
    output = b""
    for text, line in ((b"watching ", b"] one\n"), (b"] two\n", b"two\n"), (b"] three\n", b"three\n")):
        if line.startswith(b"t"):
            (project / "ignored").write_bytes(line)
            (project / "train.py").write_bytes(line)
        while text not in output or output.count(line) < 2:
            output += os.read(process.stdout.fileno(), 4096)
    for worker in (0, 1):
        (tpux.machines(job) / f"worker-{worker}/go").touch()
    output += process.communicate(timeout=60)[0]
    assert process.returncode == 0
    assert (output.count(b"] one\n"), output.count(b"] two\n"), output.count(b"] three\n")) == (2, 2, 2)
    assert tpux.show(job)["attempt"] == 3


@pytest.mark.system
def test_dev_says_what_it_waits_for(tpux, project):
    job = running(tpux, SAVING.replace("GO", str(tpux.work / "go")))
    tpux("stop", job, "--no-wait")
    tpux.until_state(job, "stopping")
    (project / "train.py").write_text("two\n")
    process = tpux.popen("dev", job, stderr=subprocess.STDOUT)
    assert process.stdout is not None
    output = b""
    while f"waiting for job {int(job)}: stopping: stop requested".encode() not in output:
        output += os.read(process.stdout.fileno(), 4096)
    (tpux.work / "go").touch()
    while b"two\n" not in output:
        output += os.read(process.stdout.fileno(), 4096)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)


def test_dev_that_is_killed_between_stop_and_resume_leaves_a_job_that_runs_again(tpux, project):
    job = running(tpux, SAVING.replace("GO", str(tpux.work / "go")))
    (project / "train.py").write_text("two\n")
    process = tpux.popen("dev", job)
    tpux.until_state(job, "stopping")
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=60)
    (tpux.work / "go").touch()
    tpux.until(lambda: all(tpux.output_so_far(job, worker, 2) == b"two\n" for worker in (0, 1)))
    tpux("stop", job)


def test_a_recovery_after_a_restart_checks_every_module(tpux, project):
    tpux.plugin(
        "tpux-counter",
        "from tpux import hookimpl, sh\n@hookimpl\ndef check():\n    yield sh('echo checked >>~/checked')\n",
        entries="counter = tpux_counter",
    )
    ends = RUNNING.replace("exec sleep 1000", "while ! [ -e ~/fail ]; do sleep 0.1; done; rm ~/fail; exit 3")
    tpux.env["TPUX_CLOCK_RATE"] = "20"
    job = running(tpux, f"setup: {{modules: [counter, code]}}\njob: {{max_restarts: {{program: 3}}}}\n{ends}")
    tpux("restart", job, "-y")
    homes = [tpux.machines(job) / f"worker-{worker}" for worker in (0, 1)]
    tpux.until(lambda: all(tpux.output_so_far(job, worker, 2) == b"one\n" for worker in (0, 1)))
    for home in homes:
        (home / "fail").touch()
    tpux.until(lambda: all(tpux.output_so_far(job, worker, 3) == b"one\n" for worker in (0, 1)))
    assert [(home / "checked").read_text() for home in homes] == ["checked\n" * 2] * 2


@pytest.mark.system
def test_a_sync_survives_the_supervisor_and_a_changed_config(tpux, project):
    job = tpux.create(CONFIG.replace("pwd", "exit 3"), "job.rule=pass")
    tpux("wait", job, code=100)
    tpux("supervisor", "stop")
    (project / "train.py").write_text("two\n")
    tpux("sync", job)
    (project / "train.py").write_text("three\n")
    tpux("resume", job, "watch.poll_every=0.5s")
    tpux("wait", job, code=100)
    tpux("rerun", job)
    tpux("wait", job, code=100)
    assert [lines(tpux, job, attempt)[0] for attempt in (2, 3)] == ["two", "two"]


def test_a_sync_sends_changed_files_only(tpux, project):
    (project / "large").write_bytes(os.urandom(300_000))
    job = running(tpux)
    (project / "train.py").write_text("two\n")
    tpux("sync", job)
    sizes = sorted(path.stat().st_size for path in tpux.home.glob("code/archives/*"))
    assert sizes[0] < 1000
    assert sizes[1] > 300_000
    again = tpux("sync", job)
    assert "nothing has changed" in again.stderr
    tpux("cp", f"{job}:train.py", "copied.txt")
    assert (project / "copied.txt").read_text() == "one\n", "a relative path starts where the program does"


@pytest.mark.system
def test_a_sync_takes_another_revision(tpux, project):
    git(project, "checkout", "--quiet", "-b", "experiment")
    (project / "train.py").write_text("experiment\n")
    git(project, "commit", "--quiet", "--all", "--message", "second")
    commit = git(project, "rev-parse", "HEAD")
    git(project, "update-ref", "refs/pull/7/head", "HEAD")
    git(project, "tag", "v2")
    git(project, "checkout", "--quiet", "main")
    job = running(tpux)
    snapshots = set()
    for option in (["--branch", "experiment"], ["--commit", commit[:12]], ["--tag", "v2"], ["--pr", "7"]):
        assert f"at {commit[:10]}: 1 file, " in tpux("sync", job, *option).stderr
        snapshots.add(json.loads((tpux.directory(job) / "updates/code.json").read_text())["values"]["snapshot"])
    assert len(snapshots) == 1
    tpux("restart", job, "-y")
    tpux.until(lambda: tpux.show(job)["resolved"]["code"]["snapshot"] in snapshots, "for the code that runs")
    tpux.until(lambda: tpux.output_so_far(job, 0, 2) == b"experiment\n")
    assert "the repository has no refs/heads/nowhere" in tpux("sync", job, "--branch", "nowhere", code=1).stderr
    assert "exclude each other" in tpux("sync", job, "--branch", "b", "--tag", "t", code=None).stderr


def test_a_sync_to_workers_that_are_lost(tpux, project):
    job = running(tpux)
    tpux("supervisor", "stop")
    for worker in (0, 1):
        home = tpux.machines(job) / f"worker-{worker}"
        home.rename(home.with_name(f"lost-{worker}"))
    (project / "train.py").write_text("two\n")
    lines = tpux("sync", job).stderr.splitlines()
    assert [line.count("worker 0:") for line in lines if "worker 0" in line] == [1]
    assert lines[-1].startswith("tpux: sent to no worker: the set-up sends it when the job has workers that answer")
    for worker in (0, 1):
        home = tpux.machines(job) / f"lost-{worker}"
        home.rename(home.with_name(f"worker-{worker}"))


def test_a_job_without_code_or_a_program_cannot_be_synced_or_restarted(tpux):
    job = tpux.create("command: {cmd: 'true'}\n")
    tpux("wait", job)
    assert "has no code that could be sent" in tpux("sync", job, code=None).stderr
    assert "has succeeded" in tpux("restart", job, code=None).stderr


def test_a_sync_takes_another_revision_of_a_directory_in_a_work_tree(tpux, project):
    (project / "a part").mkdir()
    (project / "a part/train.py").write_text("one\n")
    git(project, "add", ".")
    git(project, "commit", "--quiet", "--message", "a part")
    git(project, "branch", "experiment")
    (project / "a part/train.py").write_text("two\n")
    job = tpux.create(CONFIG.replace("code: .", "code: a part"))
    tpux("wait", job)
    assert lines(tpux, job)[0] == "two"
    tpux("sync", job, "--branch", "experiment")
    tpux("rerun", job)
    tpux("wait", job)
    assert lines(tpux, job, 2)[0] == "one"
    assert "has no directory a part" in tpux("sync", job, "--commit", git(project, "rev-parse", "HEAD~"), code=1).stderr


# --- repositories ---------------------------------------------------------------------------------


def test_a_repository_is_cloned_when_the_job_is_created(tpux, project):
    job = tpux.create(CONFIG.replace("code: .", f"code: {{repo: '{project}', branch: main}}"))
    (project / "train.py").write_text("two\n")
    git(project, "commit", "--quiet", "--all", "--message", "later")
    tpux("wait", job)
    assert lines(tpux, job)[0] == "one"
    resolved = tpux.show(job)["resolved"]["code"]
    assert (resolved["repo"], resolved["ref"], resolved["commit"]) == (
        str(project),
        "refs/heads/main",
        git(project, "rev-parse", "HEAD~"),
    )
    done = tpux("sync", job, "--branch", "b", "--tag", "t", code=2)
    message = "tpux: error: --branch, --tag: branch and tag exclude each other: set only one of them"
    assert done.stderr.strip() == message
    done = tpux("sync", job, "--commit", "main", code=2)
    assert str(project) not in done.stderr
    assert "--commit: 'main' is not a commit" in done.stderr
    assert "pydantic" not in done.stderr


def test_a_relative_path_of_a_repository_starts_where_the_command_was_typed(tpux, project):
    job = tpux.create(CONFIG.replace("code: .", f"code: {{repo: ../{project.name}}}"))
    (project / "train.py").write_text("two\n")
    git(project, "commit", "--quiet", "--all", "--message", "later")
    (project / "else/where").mkdir(parents=True)
    tpux.work = project / "else/where"
    assert git(project, "rev-parse", "HEAD")[:10] in tpux("sync", job).stderr
    assert tpux.show(job)["resolved"]["code"]["repo"] == str(project)
    tpux("wait", job)


def test_a_repository_that_needs_a_login(tpux):
    """A server that asks for a password: git must not prompt, and the password of the URL must not be shown."""
    import threading
    from http.server import BaseHTTPRequestHandler, HTTPServer

    seen = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            seen.append(self.headers.get("Authorization"))
            self.send_response(401)
            self.send_header("WWW-Authenticate", 'Basic realm="git"')
            self.end_headers()

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        tpux.env["TOKEN"] = "s3cret"
        for user in ("", "ann:${env:TOKEN}@"):
            url = f"http://{user}127.0.0.1:{server.server_port}/project.git"
            done = tpux("create", tpux.config(f"code: {{repo: '{url}'}}\ncommand: {{cmd: x}}\n"), code=1)
            assert "the repository needs a login" in done.stderr
            assert "s3cret" not in done.stderr
    finally:
        server.shutdown()
        server.server_close()
    assert any(seen), "the password of the URL was sent"


@pytest.mark.system
@pytest.mark.parametrize("path", ["${env:PROJECT}", "${env:PARENT}/work"])
def test_sync_names_a_deleted_secret_of_the_code(tpux, project, path):
    tpux.env |= {"PROJECT": str(project), "PARENT": str(project.parent)}
    text = CONFIG.replace("code: .", f"code: {{repo: '{path}'}}").replace("v4-16", "v4-8, keep_on_failure: 1h")
    job = tpux.create(text.replace("pwd", "exit 3"), "job.rule=pass")
    tpux("wait", job, code=100)
    tpux.until_done()
    name = path[len("${env:") :].partition("}")[0]
    del tpux.env[name]
    said = tpux("sync", job, code=1).stderr
    assert f"job 1: code.repo: the secret {name} was deleted when the job ended" in said
    assert f"hint: set {name} in the environment and try again" in said
    assert f"ready: its config cannot be compared with its last set-up: {name} was" in tpux("check", job).stdout
    tpux.env[name] = str(project if name == "PROJECT" else project.parent)
    assert "nothing has changed" in tpux("sync", job).stderr


@pytest.mark.system
def test_sync_and_cp_need_no_deleted_secret_of_another_section(tpux, project):
    tpux.env["INDEX"] = "http://127.0.0.1/simple"
    text = CONFIG.replace("v4-16", "v4-8, keep_on_failure: 1h").replace("pwd", "exit 3")
    settings = "venv: {index_url: '${env:INDEX}'}\njob: {env_type: venv, rule: pass}\n"
    job = tpux.create(f"{settings}{text}")
    tpux("wait", job, code=100)
    tpux.until_done()
    del tpux.env["INDEX"]
    (project / "train.py").write_text("two\n")
    assert "sent to 1 of 1 workers" in tpux("sync", job).stderr
    assert "copied to worker 0" in tpux("cp", "train.py", f"{job}:copy.py").stderr
    assert tpux("exec", job, "--", "cat ~/.tpux/code/jobs/*/copy.py").stdout == "[0] two\n"


def test_pointers_of_git_lfs_are_named_with_the_command_that_fetches_the_files(tpux, project):
    library = project / "library"
    library.mkdir()
    git(library, "init", "--quiet")
    for name in (*(f"model-{number}.w" for number in range(6)), "library/data.w"):
        (project / name).write_text(POINTER)
    config = tpux.config(CONFIG)
    pulls = f"fetch them: git -C {library} lfs pull && git -C {project} lfs pull;"
    names = "library/data.w, model-0.w, model-1.w, model-2.w, model-3.w and 2 more"
    for arguments in (["preflight", config], ["create", config], ["sync", "1"]):
        said = tpux(*arguments).stderr
        assert f"the workers get pointers of Git LFS instead of the files: {names}" in said
        assert pulls in said
    said = tpux("preflight", config, "code.={dir: ., exclude: ['*.w']}").stderr
    assert "LFS" not in said
    tpux("wait", "1")


def test_pointers_of_git_lfs_in_a_repository(tpux, project):
    (project / "model.w").write_text(POINTER)
    git(project, "add", "model.w")
    git(project, "commit", "--quiet", "--message", "weights")
    said = tpux("preflight", tpux.config(CONFIG.replace("code: .", f"code: {{repo: '{project}'}}"))).stderr
    assert "the workers get pointers of Git LFS instead of the files: model.w" in said
    assert "git lfs install" in said
