"""A store that was moved, copied or restored: nothing is done with its jobs before the user has said which."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace

import pytest

RUNS = "command: {cmd: 'echo up; while :; do sleep 0.1; done', grace_period: 1s}\n"
BOTH = re.compile(r"tpux store moved.*tpux store copied", re.DOTALL)
LOUD = """
    from tpux import hookimpl

    @hookimpl
    def on_event(job, event):
        with open("/proc/self/environ", "rb") as file:
            home = dict(v.split(b"=", 1) for v in file.read().split(b"\\0") if v)[b"TPUX_HOME"].decode()
        with open(home + "/heard", "a") as file:
            print(job.id, event.type, getattr(event, "to", ""), file=file)
"""


@pytest.fixture
def copy(tpux, tmp_path):
    """A store with a running job, whose supervisor was stopped, and a copy of it."""
    tpux.plugin("tpux-loud", LOUD, entries="loud = tpux_loud")
    tpux.env["TPUX_TEST_OWN_PROCESS"] = "1"  # the plugin reads /proc
    job = tpux.create(RUNS)
    tpux.until(lambda: tpux.output_so_far(job) == b"up\n")
    tpux("supervisor", "stop")
    home = tmp_path / "copy"
    shutil.copytree(tpux.home, home)
    other = replace(tpux, home=home, env=tpux.env | {"TPUX_HOME": str(home)})
    yield other
    other.close()


@pytest.mark.system
def test_a_copy_does_nothing_until_the_user_says_what_it_is(tpux, copy):
    job = "000001"
    before = tpux.directory(job).joinpath("events.jsonl").read_bytes()
    for command in (["list"], ["show", "1"], ["logs", "1"], ["supervisor", "status"]):
        assert BOTH.search(copy(*command).stderr), command
    assert json.loads(copy("list", "--json").stdout)[0]["state"] == "running"
    for command in (
        ["stop", "1"],
        ["create", "job.yaml"],
        ["delete", "-y", "1"],
        ["wait", "1"],
        ["logs", "-f", "1"],
        ["exec", "1", "touch ~/touched"],
        ["ssh", "1"],
        ["cp", "job.yaml", "1:job.yaml"],
        ["restart", "--setup", "1"],
        ["check", "1"],
        ["diagnose", "1"],
        ["solve", "1"],
        ["restart", "-y", "1"],
        ["delete", "1"],
        ["supervisor", "start"],
    ):
        refused = copy(*command, code=1).stderr
        assert f"error: {copy.home}: " in refused
        assert BOTH.search(refused), command
        assert refused.count("tpux store moved") == 1
    started = [sys.executable, "-m", "tpux.supervisor"]  # as systemd or cron do
    done = subprocess.run(started, env=copy.env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, "systemd is not to start it again every few seconds"
    assert BOTH.search(done.stderr)
    assert copy.directory(job).joinpath("events.jsonl").read_bytes() == before
    assert not list(copy.directory(job).glob("requests/*"))

    tpux("list")
    tpux("show", "1")
    assert "tpux store" not in tpux("list").stderr, "the original is where it was made"

    assert "jobs-of-" in copy("store", "copied").stderr
    identities = [json.loads((home / "store.json").read_text()) for home in (tpux.home, copy.home)]
    assert identities[0]["id"] != identities[1]["id"]
    [aside] = copy.home.glob("jobs-of-*")
    assert [path.read_bytes() for path in aside.glob("*/000001/events.jsonl")] == [before]
    assert copy.json("list") == []
    tpux("list")  # starts the supervisor of the original again
    assert copy.create("command: {cmd: 'true'}\n") == "000001"
    copy("wait", "1")
    assert tpux.show("1")["state"] == "running"
    tpux("stop", "1")


def test_a_restored_store_continues(tpux, tmp_path):
    """A backup has the same path, and another inode."""
    tpux("run", tpux.config("command: {cmd: 'true'}\n"))
    tpux.until_done()
    identity = tpux.home / "store.json"
    was = json.loads(identity.read_text())
    shutil.copytree(tpux.home, tmp_path / "backup")
    tpux.home.rename(tmp_path / "broken")
    (tmp_path / "backup").rename(tpux.home)
    assert BOTH.search(tpux("rerun", "1", code=1).stderr)
    assert BOTH.search(tpux("clean", code=1).stderr), "it is refused before it asks"
    assert "continue from here" in tpux("store", "moved").stderr
    tpux("rerun", "1")
    tpux("wait", "1")
    assert json.loads(identity.read_text()) == {**was, "inode": tpux.home.stat().st_ino}


def test_a_store_that_was_moved_elsewhere_has_the_files_of_its_jobs(tpux, tmp_path):
    (tpux.work / "prepare.sh").write_text("echo prepared > prepared\n")
    config = tpux.config("script: prepare.sh\ncommand: {cmd: cat prepared}\n")
    tpux("run", config)
    tpux.until_done()
    (tpux.work / "prepare.sh").unlink()
    moved = replace(tpux, home=tmp_path / "moved", env=tpux.env | {"TPUX_HOME": str(tmp_path / "moved")})
    shutil.copytree(tpux.home, moved.home)
    shutil.rmtree(tpux.home)
    moved("store", "moved")
    moved("rerun", "1", "command.env={X: y}")
    moved("wait", "1")
    assert moved.output("000001", attempt=2) == b"prepared\n"
    moved.close()


def test_a_store_of_an_earlier_version_records_its_place(tpux):
    tpux("run", tpux.config("command: {cmd: 'true'}\n"))
    identity = tpux.home / "store.json"
    whole = json.loads(identity.read_text())
    assert whole["inode"] == tpux.home.stat().st_ino
    identity.write_text(json.dumps({key: value for key, value in whole.items() if key != "inode"}))
    tpux("run", "job.yaml")
    assert json.loads(identity.read_text()) == whole
    assert "nothing to do" in tpux("store", "moved").stderr
    tpux.until_done()
    assert "confirm" in tpux("store", "copied", code=2).stderr
