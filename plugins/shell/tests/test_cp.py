"""`tpux cp`: files to and from the workers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.world import World

from tpux import hookimpl, sh
from tpux.lifecycle.connection import JobConnection

CONFIG = "tpu: {accelerator: v4-16}\ncommand: {cmd: 'echo ready; exec sleep 1000', grace_period: 1s}\n"


@pytest.fixture
def job(tpux):
    job = tpux.create(CONFIG)
    tpux.until(lambda: all(tpux.output_so_far(job, worker) == b"ready\n" for worker in (0, 1)))
    return job


def test_files_to_and_from_workers(tpux, job):
    script = tpux.work / "run me.sh"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o750)
    assert "copied to worker 0, 1" in tpux("cp", "run me.sh", f"{job}:new dir/").stderr
    for worker in (0, 1):
        copy = tpux.machines(job) / f"worker-{worker}/new dir/run me.sh"
        assert (copy.read_text(), copy.stat().st_mode & 0o777) == ("#!/bin/sh\n", 0o750)
        (tpux.machines(job) / f"worker-{worker}/log").write_text(f"of {worker}")
    tpux("cp", "run me.sh", f"{job}:new dir", "--worker", "1")
    tpux("cp", f"{job}:~/log", ".")
    tpux("cp", "job:log", "here.txt", "--worker", "1")
    tpux("cp", f"{job}:log", "all", "--worker", "all")
    texts = {
        name: (tpux.work / name).read_text() for name in ("log", "here.txt", "all/worker-0/log", "all/worker-1/log")
    }
    assert texts == {"log": "of 0", "here.txt": "of 1", "all/worker-0/log": "of 0", "all/worker-1/log": "of 1"}


def test_home_directories_and_directories_that_do_not_exist(tpux, job):
    (tpux.work / "data.csv").write_text("data")
    tpux("cp", "data.csv", f"{job}:~")
    assert (tpux.machines(job) / "worker-1/data.csv").read_text() == "data"
    for name in ("one", "two"):
        (tpux.machines(job) / f"worker-0/{name}").write_text(name)
        tpux("cp", f"{job}:{name}", "out/")
    assert {path.name for path in (tpux.work / "out").iterdir()} == {"one", "two"}
    done = tpux("cp", f"{job}:data.csv", "data.csv", "--worker", "0-1", code=2)
    assert "data.csv is not a directory" in done.stderr
    assert "data.csv is not a directory" in tpux("cp", f"{job}:one", "data.csv/", code=2).stderr
    tpux("cp", f"{job}:missing", "empty/", code=1)
    assert not (tpux.work / "empty").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("JOB:missing", "."), "worker 0: missing does not exist"),
        (("JOB:tmp", "."), "worker 0: tmp is a directory"),
        (("JOB:", "."), "the path is missing"),
        (("JOB:~", "."), "worker 0: . is a directory"),
        (("JOB:~ann/x", "."), "~ stands for one's own home directory only"),
        (("a", "b"), "one of the two must be JOB:PATH"),
        (("nothing", "JOB:a"), "nothing is not a file"),
        (("JOB:a", ".", "--worker", "7"), "has no worker 7"),
    ],
)
def test_mistakes(tpux, job, arguments, message):
    done = tpux("cp", *[argument.replace("JOB", job) for argument in arguments], code=None)
    assert done.returncode != 0
    assert message in done.stderr


def test_a_plugin_that_starts_the_program_in_its_output_directory(tmp_path, monkeypatch):
    class Starts:
        @hookimpl
        def check(self):
            yield sh("true")

        @hookimpl
        def prepare_command(self, command):
            return replace(command, cwd=command.env["TPUX_OUTPUT_DIR"])

    world = World(tmp_path, monkeypatch)
    world.plugins.add("starts", Starts())
    world.create("setup: {modules: [starts]}\ncommand: {cmd: pwd, workers: 0}")
    world.until(lambda: world.output(0))
    state = world.state
    connection = JobConnection(world.turn.job, state.machines, world.plugins, state)
    directories = [connection.program_directory(worker) for worker in state.machines.workers]
    assert directories == [state.run.output_dir] * 2, "also on a worker without the program"
    assert world.output(0) == f"{state.run.output_dir}\n"
    world.until("succeeded")


def test_a_file_where_the_path_needs_a_directory_is_named(tpux, job):
    (tpux.work / "data").write_text("data")
    (tpux.machines(job) / "worker-1/a file").write_text("")
    (tpux.machines(job) / "worker-1/link").symlink_to("nowhere")
    for path, blocking in (
        ("a file/b", "a file"),
        ("a file/", "a file"),
        ("~/a file/d/c", "a file"),
        ("link/b", "link"),
    ):
        said = tpux("cp", "data", f"{job}:{path}", code=1).stderr
        assert "data copied to worker 0" in said
        assert f"worker 1: {blocking} is not a directory" in said
        quoted = f"'{blocking}' '{blocking}.old'" if " " in blocking else f"{blocking} {blocking}.old"
        assert f"hint: copy to another path, or rename it: tpux exec 1 --host --worker 1 -- mv {quoted}" in said
        assert "TPUX_HOME" not in said
    tpux("exec", job, "--host", "--worker", "1", "--", "mv", "a file", "a file.old")
    tpux("cp", "data", f"{job}:a file/b", "--worker", "1")


def test_a_file_that_cannot_be_written_on_a_local_worker(tpux, job):
    (tpux.work / "data").write_text("data")
    said = tpux("cp", "data", f"{job}:/proc/none", "--worker", "0", code=1).stderr
    assert "worker 0: put /proc/none: " in said
    assert "TPUX_HOME" not in said
