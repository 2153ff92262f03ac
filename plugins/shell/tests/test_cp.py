"""`tpux cp`: files to and from the workers."""

from __future__ import annotations

import io
import os
import tarfile
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.world import World

from tpux import Result, hookimpl, sh
from tpux.lifecycle.connection import JobConnection
from tpux_shell.directories import download_directory

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


def test_directories_to_and_from_workers(tpux, job):
    data = tpux.work / "my data"
    (data / "deep/er").mkdir(parents=True)
    (data / "deep/er/it's").write_text("text")
    (data / "run").write_text("#!/bin/sh\n")
    (data / "run").chmod(0o750)
    (data / "link").symlink_to("deep/er/it's")
    done = tpux("cp", "my data", f"{job}:there", code=2)
    assert f"my data is a directory\n  hint: tpux cp -r 'my data' {job}:there" in done.stderr
    tpux("cp", "-r", "my data", f"{job}:there")
    tpux("cp", "-r", "my data", f"{job}:there")
    tpux("cp", "-r", "my data/run", f"{job}:there/just a file")
    for worker in (0, 1):
        home = tpux.machines(job) / f"worker-{worker}"
        assert (home / "there/just a file").read_text() == "#!/bin/sh\n"
        for copy in (home / "there", home / "there/my data"):
            assert (copy / "deep/er/it's").read_text() == "text"
            assert (copy / "run").stat().st_mode & 0o777 == 0o750
            assert (copy / "link").readlink().as_posix() == "deep/er/it's"
        assert not list((home / ".tpux/copies").iterdir())

    done = tpux("cp", f"{job}:there/my data", "back", code=1)
    assert f"there/my data is a directory\n  hint: tpux cp -r '{job}:there/my data' back" in done.stderr
    (tpux.machines(job) / "worker-0/there/my data/out").symlink_to("/etc")
    (tpux.machines(job) / "worker-0/there/my data/up").symlink_to("../../..")
    said = tpux("cp", "-r", f"{job}:there/my data", "back").stderr
    assert "not copied, because it leads out of there/my data or is no file: " in said
    assert {path.name for path in (tpux.work / "back").iterdir()} == {"deep", "run", "link"}
    assert (tpux.work / "back/deep/er/it's").read_text() == "text"
    assert (tpux.work / "back/link").readlink().as_posix() == "deep/er/it's"
    assert (tpux.work / "back/run").stat().st_mode & 0o777 == 0o750
    tpux("cp", "-r", f"{job}:there/my data", "all", "--worker", "all")
    assert (tpux.work / "all/worker-1/my data/deep/er/it's").read_text() == "text"
    assert not list((tpux.machines(job) / "worker-0/.tpux/copies").iterdir())


@pytest.mark.parametrize("direction", ["to", "from"])
def test_an_archive_that_a_lost_connection_has_left_is_removed_the_next_day(tpux, job, direction):
    copies = tpux.machines(job) / "worker-0/.tpux/copies"
    copies.mkdir(parents=True, exist_ok=True)
    yesterday, now = copies / "yesterday.tar", copies / "now.tar"
    for archive in (yesterday, now):
        archive.write_bytes(b"")
    os.utime(yesterday, (time.time() - 100_000,) * 2)
    (tpux.work / "some").mkdir(exist_ok=True)
    (tpux.machines(job) / "worker-0/others").mkdir(exist_ok=True)
    tpux("cp", "-r", *(("some", f"{job}:some") if direction == "to" else (f"{job}:others", "others")))
    assert list(copies.iterdir()) == [now], "another copy may use it"
    now.unlink()


@pytest.mark.parametrize(
    "name", ["../outside", "/tmp/tpux-cp-outside", "link/outside"], ids=["parent", "absolute", "through-a-link"]
)
def test_an_archive_writes_nothing_outside_of_the_copy(tmp_path, name):
    def archive(_, local):
        with tarfile.open(local, "w") as file:
            link = tarfile.TarInfo("link")
            link.type, link.linkname = tarfile.SYMTYPE, str(tmp_path)
            file.addfile(link)
            entry = tarfile.TarInfo(name)
            entry.size = 4
            file.addfile(entry, io.BytesIO(b"evil"))

    host = SimpleNamespace(run=lambda *_, **__: Result(), get=archive)
    left_out = download_directory(host, "out", tmp_path / "here/copy")
    assert "link" in left_out
    outside = [path for path in tmp_path.rglob("*") if path.name == "outside" and "copy" not in path.parts]
    assert outside == []
    assert not Path("/tmp/tpux-cp-outside").exists()


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
