"""`tpux setup`, `check` and `restart --setup`, through the command line, with a module that writes files."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import zipfile

import pytest

MODULE = """
    from tpux import Section, UsageError, hookimpl, put, sh
    from tpux.fields import LocalFile

    class Files(Section):
        text: str = "hello"
        \"\"\"Content of the file.\"\"\"
        source: LocalFile | None = None
        \"\"\"A file to copy.\"\"\"

    @hookimpl
    def config_section():
        return Files

    @hookimpl
    def check(config):
        yield sh("# look for the file\\n[ -e ready ] || { echo the file is missing; exit 1; }")

    @hookimpl
    def setup(config, worker):
        yield sh("echo set up >>log; while [ -e ../hold ]; do sleep 0.1; done; [ ! -e ../broken ] || exit 7")
        if config.source:
            yield put(config.source, "copied")
        yield sh("echo {text} on {index} >ready", text=config.text, index=worker.index)
"""
CONFIG = """
job: {name: trial}
tpu: {accelerator: v4-16}
setup: {modules: [files], tries: 1}
files: {text: it's here}
command: {cmd: "sleep 1000", grace_period: 1s}
"""


@pytest.fixture
def files(tpux):
    """A tpux with the module `files`."""
    tpux.plugin("tpux-test-files", MODULE, entries="files = tpux_test_files")
    return tpux


def _stopped(tpux, text=CONFIG, *overrides):
    job = tpux.create(text, *overrides)
    tpux.until_state(job, "running")
    tpux("stop", job)
    return job


def _home(tpux, job, worker):
    return tpux.machines(job) / f"worker-{worker}"


def _setups(tpux, job, worker):
    path = _home(tpux, job, worker) / "log"
    return len(path.read_text().splitlines()) if path.exists() else 0


def test_a_dry_run_needs_no_machine_and_creates_no_job(files):
    printed = files("setup", files.config(CONFIG), "--dry-run", "files.text=a b").stdout
    assert "files: check on worker 0, 1" in printed
    assert "files: setup on worker 0\n" in printed
    assert "echo 'a b' on 1 >ready" in printed
    assert files.json("list") == []
    assert not list(files.home.glob("jobs/*/0*"))


def test_the_steps_of_a_dry_run_as_json(files):
    (files.work / "data").write_text("12345")
    config = files.config(CONFIG)
    printed = files.json("setup", config, "--dry-run", "--worker", "1", "--only", "files", "files.source=data")
    assert [(one["module"], one["hook"], one["workers"]) for one in printed] == [
        ("files", "check", [1]),
        ("files", "setup", [1]),
    ]
    script, put, last = printed[1]["steps"]
    assert put == {"put": "copied", "from": str(files.work / "data"), "mode": "600"}
    assert script["script"].startswith("echo set up")
    assert last["script"].endswith("on 1 >ready")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["job.yaml"], "is a config, not a job"),
        (["nowhere.yaml", "--dry-run"], "nowhere.yaml"),
        (["job.yaml", "--dry-run", "--only", "docker"], "the config has no module 'docker'"),
        (["job.yaml", "--dry-run", "--worker", "2"], "there is no worker 2"),
        (["000007"], "there is no job 000007"),
        (["000007", "--dry-run"], "there is no job 000007"),
    ],
)
def test_invalid_arguments_of_setup(files, args, message):
    files.config(CONFIG)
    assert message in files("setup", *args, code=2).stderr


def test_check_reports_each_worker_that_is_not_ready_and_why(files):
    job = _stopped(files)
    assert files("check", job).stdout == "worker 0  files  ready\nworker 1  files  ready\n"
    (_home(files, job, 1) / "ready").unlink()
    printed = files("check", job, code=1).stdout
    assert printed.splitlines()[0] == "worker 0  files  ready"
    assert printed.splitlines()[1].startswith("worker 1  files  not ready: `look for the file` exited with 1: ")
    printed = json.loads(files("check", job, "--json", code=1).stdout)
    assert printed["ready"] is False
    assert [row["ready"] for row in printed["modules"]] == [True, False]
    assert files("check", job, "--worker", "0").stdout == "worker 0  files  ready\n"
    assert "has no worker 5" in files("check", job, "--worker", "5", code=2).stderr
    assert "has no module 'venv'" in files("check", job, "--only", "venv", code=2).stderr


def test_checks_of_several_modules_have_verdicts_of_their_own(files):
    files.plugin(
        "tpux-twice",
        """
        from tpux import hookimpl, sh

        @hookimpl
        def check():
            found = yield sh("echo $PWD; exit 3", may_fail=True)
            yield sh("[ {code} = 3 ] && cd {home} && echo checked >>checks", code=found.code, home=found.text)
            yield sh("[ ! -e broken ]")
            if (yield sh("[ -e faulty ]", may_fail=True)).ok:
                raise LookupError("no luck")
        """,
        entries="twice = tpux_twice",
    )
    job = _stopped(files, CONFIG.replace("[files]", "[twice, files]"))
    before = (_home(files, job, 0) / "checks").read_text()
    assert "not ready" not in files("check", job).stdout
    assert (_home(files, job, 0) / "checks").read_text() == f"{before}checked\n"
    (_home(files, job, 0) / "broken").touch()
    (_home(files, job, 1) / "ready").unlink()
    lines = files("check", job, code=1).stdout.splitlines()
    assert [line.split("  ")[2].partition(":")[0] for line in lines] == ["not ready", "ready", "ready", "not ready"]
    (_home(files, job, 0) / "broken").unlink()
    (_home(files, job, 0) / "faulty").touch()
    lines = files("check", job, "--worker", "0", code=1).stdout.splitlines()
    assert "failed in check: LookupError: no luck" in lines[0]
    assert lines[1] == "worker 0  files  ready"


def test_check_of_a_running_job_changes_nothing(files):
    job = files.create(CONFIG)
    files.until(lambda: files.events(job, "attempt-running"))
    (_home(files, job, 0) / "ready").unlink()
    before = files.show(job)
    files("check", job, code=1)
    assert files.show(job) == before
    assert not (_home(files, job, 0) / "ready").exists()


def test_an_unreachable_worker_is_not_ready(files):
    job = _stopped(files)
    _home(files, job, 1).rename(_home(files, job, 1).with_name("away"))
    printed = files("check", job, code=1).stdout.splitlines()
    assert printed[0] == "worker 0  files  ready"
    assert "not ready: there is no directory" in printed[1]


def test_setup_of_one_worker_does_not_start_the_command(files):
    job = _stopped(files)
    for worker in (0, 1):
        (_home(files, job, worker) / "ready").unlink()
    files("setup", job, "--worker", "1", "--only", "files")
    assert (_home(files, job, 1) / "ready").read_text() == "it's here on 1\n"
    assert not (_home(files, job, 0) / "ready").exists()
    shown = files.show(job)
    assert (shown["state"], shown["why"], shown["attempt"]) == ("stopped", "workers set up", 1)
    files("setup", job)
    files("check", job)
    assert [_setups(files, job, worker) for worker in (0, 1)] == [2, 2]
    assert len(files.events(job, "attempt-started")) == 1


def test_a_failed_setup_is_reported(files):
    job = _stopped(files)
    (files.machines(job) / "broken").touch()
    for worker in (0, 1):
        (_home(files, job, worker) / "ready").unlink()
    message = files("setup", job, code=100).stderr
    assert "exited with 7" in message
    assert files.show(job)["failure"]["kind"] == "setup"
    assert "interrupted" in files("check", job, code=1).stdout
    (files.machines(job) / "broken").unlink()
    files("setup", job)
    files("check", job)


@pytest.mark.system
def test_a_killed_supervisor_does_not_repeat_the_setup(files):
    job = _stopped(files)
    (_home(files, job, 1) / "ready").unlink()
    (files.machines(job) / "hold").touch()
    setting_up = files.popen("setup", job)
    files.until(lambda: _setups(files, job, 1) == 2)
    os.kill(files.supervisor(), signal.SIGKILL)
    (files.machines(job) / "hold").unlink()
    assert setting_up.wait(60) == 0
    assert _setups(files, job, 1) == 2
    files("check", job)


@pytest.mark.system
def test_a_resume_during_setup_sets_up_all_workers_and_runs(files):
    job = _stopped(files)
    for worker in (0, 1):
        (_home(files, job, worker) / "ready").unlink()
    (files.machines(job) / "hold").touch()
    setting_up = files.popen("setup", job, "--worker", "1")
    files.until(lambda: _setups(files, job, 1) == 2)
    files("stop", job)
    assert setting_up.wait(60) == 103
    (files.machines(job) / "hold").unlink()
    files("resume", job)
    files.until_state(job, "running")
    files("check", job)
    assert files.show(job)["attempt"] == 2


def test_a_running_job_and_one_without_machines_cannot_be_set_up(files):
    job = files.create(CONFIG)
    files.until_state(job, "running")
    assert "tpux stop" in files("setup", job, code=2).stderr
    assert "echo" in files("setup", job, "--dry-run").stdout
    files("stop", job, "--release")
    files.until(lambda: files.show(job)["allocation"] is None)
    assert "holds no machines" in files("setup", job, code=2).stderr
    assert "holds no machines" in files("check", job, code=2).stderr


def test_a_succeeded_job_cannot_be_set_up(files):
    job = files.create(CONFIG, "command.cmd=exit 0")
    files("wait", job)
    assert "tpux rerun" in files("setup", job, code=2).stderr


def test_without_modules_there_is_nothing_to_do(tpux):
    job = _stopped(tpux, "command: {cmd: sleep 1000, grace_period: 1s}\n")
    assert "no modules" in tpux("setup", job).stderr
    assert "no modules" in tpux("check", job).stderr
    assert tpux.json("check", job) == {"id": job, "ready": True, "modules": []}


def test_a_changed_file_is_copied_again(files):
    (files.work / "data").write_text("old")
    job = _stopped(files, CONFIG, "files.source=data")
    (copy,) = (files.directory(job) / "files").iterdir()
    copy.write_text("new")
    assert "its config has changed" in files("check", job, code=1).stdout
    files("setup", job)
    assert (_home(files, job, 0) / "copied").read_text() == "new"
    files("check", job)


def test_a_manual_setup_is_accepted_until_the_config_changes(files):
    (files.work / "data").write_text("old")
    job = _stopped(files, CONFIG, "files.source=data")
    for worker in (0, 1):
        (_home(files, job, worker) / ".tpux/ready/files").unlink()
    files("setup", job)
    assert _setups(files, job, 0) == 1
    next((files.directory(job) / "files").iterdir()).write_text("new")
    files("setup", job)
    assert _setups(files, job, 0) == 2


def test_restart_with_setup_resumes_on_the_same_machines(files):
    one, two = files.create(CONFIG), files.create(CONFIG)
    for job in (one, two):
        files.until_state(job, "running")
    assert "pass -y to confirm" in files("restart", "--setup", one, code=2).stderr
    assert re.search(
        rf"would restart:\n  job {int(one)} .*\n  job {int(two)} ",
        files("restart", "--setup", one, two, "--dry-run").stderr,
    )
    assert files.show(one)["attempt"] == 1
    files("reboot", one, two, "-y")  # as in tpu_manager
    for job in (one, two):
        files.until(lambda job=job: files.show(job)["attempt"] == 2)
        files.until_state(job, "running")
        assert len(files.events(job, "allocation-requested")) == 1
        assert files.events(job, "attempt-started")[-1]["stage"] == 1


def test_a_succeeded_job_cannot_be_restarted(files):
    job = files.create(CONFIG, "command.cmd=exit 0")
    files("wait", job)
    assert "tpux rerun" in files("restart", "--setup", job, "-y", code=2).stderr
    assert len(files.events(job, "attempt-started")) == 1


def test_a_unique_name_selects_its_job(files):
    job = _stopped(files)
    for command in (["show"], ["check"], ["setup"], ["logs", "--module", "files"], ["wait"]):
        files(*command, "trial", code=103 if command == ["wait"] else 0)
    other = files.create(CONFIG)
    said = files("stop", "trial").stderr
    assert "2 jobs are called trial" in said
    assert f"{int(job)} (stopped)" in said
    assert f"using job {int(other)}" in said
    assert "there is no job tria" in files("show", "tria", code=2).stderr


def test_a_number_is_an_id_also_if_a_job_has_it_as_its_name(files):
    _stopped(files, CONFIG.replace("trial", "'2'"))
    second = _stopped(files)
    assert files.show("2")["id"] == second
    files("delete", second, "-y")
    assert "there is no job 2" in files("show", "2", code=2).stderr


def _wheel(path, version):
    info = f"tpux_tiny-{version}.dist-info"
    content = {
        "tpux_tiny.py": f"VERSION = {version!r}\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: tpux-tiny\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": "",
    }
    path.mkdir(exist_ok=True)
    with zipfile.ZipFile(path / f"tpux_tiny-{version}-py3-none-any.whl", "w") as wheel:
        for name, text in content.items():
            wheel.writestr(name, text)


@pytest.mark.system
def test_the_virtual_environment_is_updated_when_the_requirements_change(tpux):
    """The plugin venv installs a wheel that the test builds."""
    _wheel(tpux.work / "wheels", "1.0")
    (tpux.work / "requirements.txt").write_text("--no-index\ntpux-tiny==1.0\n")
    tpux.env["PATH"] = os.pathsep.join([os.path.dirname(sys.executable), tpux.env["PATH"]])  # noqa: PTH120
    job = tpux.create(
        f"""
job: {{env_type: venv}}
tpu: {{accelerator: v4-16}}
venv: {{requirements_file: requirements.txt, find_links: "{tpux.work}/wheels"}}
command:
  cmd: |
    python -c 'import sys, tpux_tiny; print(sys.prefix, tpux_tiny.VERSION)'
    exit 3
"""
    )
    tpux("wait", job, code=100)
    assert tpux.output(job, 1).decode().split() == [str(_home(tpux, job, 1) / "venv"), "1.0"]
    tpux("check", job)
    _wheel(tpux.work / "wheels", "2.0")
    next((tpux.directory(job) / "files").iterdir()).write_text("--no-index\ntpux-tiny==2.0\n")
    assert "its config has changed" in tpux("check", job, code=1).stdout
    tpux("setup", job, "--only", "venv")
    python = _home(tpux, job, 0) / "venv/bin/python"
    assert subprocess.run([python, "-c", "import tpux_tiny; assert tpux_tiny.VERSION == '2.0'"]).returncode == 0


def test_an_unquoted_python_version_is_an_error_with_its_position(runner):
    config = runner.config("job: {env_type: venv}\nvenv:\n  python: 3.10\ncommand: {cmd: 'true'}\n")
    message = runner("create", config, code=2).stderr
    assert "job.yaml:3:" in message
    assert 'write "3.10" in quotes' in message


def test_a_restart_whose_set_up_fails_is_followed_by_a_full_one(files):
    files.env["TPUX_CLOCK_RATE"] = "10"
    job = _stopped(files, CONFIG, "job.max_restarts.setup=1")
    homes = [files.machines(job) / f"worker-{worker}" for worker in (0, 1)]
    (homes[1] / "ready").unlink()  # as a reboot does to a mount
    claims = homes[1] / f".tpux-{os.getuid()}"
    claims.rename(homes[1] / "claims")
    claims.touch()  # nothing can be created below it
    files("restart", job, "-y")
    files.until_state(job, "recovering")
    assert not (homes[1] / "ready").exists(), "the restart itself sets up nothing"
    claims.unlink()
    files.until(lambda: files.show(job)["state"] == "running", "for the next round")
    assert (homes[1] / "ready").exists()
    files("stop", job)


def test_a_restart_after_a_set_up_that_broke_off_is_a_full_one(files):
    job = _stopped(files)
    machines = files.machines(job)
    (machines / "worker-0/ready").unlink()
    (machines / "broken").touch()
    files("setup", job, "--only", "files", code=100)
    (machines / "broken").unlink()
    files("restart", job, "-y")
    files.until_state(job, "running")
    assert (machines / "worker-0/ready").exists()
    files("stop", job)
