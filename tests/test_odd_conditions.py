"""What happens to machines and stores beside preemptions: a log of gigabytes, file systems that cannot be written."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.tiers import representative
from tests.world import World

pytestmark = pytest.mark.system
root_only = pytest.mark.skipif(os.getuid() != 0, reason="only root may mount")
TICKS = "n=0; until [ -e ~/end ]; do sleep 0.1; n=$((n+1)); echo tick $n; done"


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(tmp_path, monkeypatch)


@contextmanager
def read_only(path: Path) -> Iterator[None]:
    """Let nothing below a directory be written."""
    for command in (["mount", "--bind", path, path], ["mount", "-o", "remount,bind,ro", path]):
        if (done := subprocess.run(command, capture_output=True, check=False)).returncode:
            pytest.skip(f"cannot mount here: {done.stderr.decode()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", path], check=True)


@pytest.mark.parametrize("preempted_first", [True, False])
@pytest.mark.parametrize("steps", representative([0, 1, 2, 4, 8]))
def test_a_restart_that_races_with_a_preemption_starts_one_attempt_on_new_machines(world, steps, preempted_first):
    world.create("tpu: {keep_on_stop: 0}\ncommand: {cmd: 'echo up; exec sleep 1000', grace_period: 0}")
    world.until(lambda: world.output() == "up\n")

    def preempt():
        world.cloud.state, world.cloud.up = "preempted", False

    # As `tpux restart` does.
    first, second = (preempt, lambda: world.request("stop", keep_for=600))[:: 1 if preempted_first else -1]
    first()
    world.steps(steps)
    second()
    world.until(lambda: world.state.ended)
    world.request("resume", skip_setup=True)
    world.until(lambda: world.output(attempt=0) == "up\n" and world.state.run.running)
    assert world.cloud.generation == 2
    attempt = world.state.attempt
    assert world.output(attempt=attempt) == "up\n"
    world.steps(20)
    assert (world.state.attempt, world.state.state) == (attempt, "running")
    world.request("delete")
    world.until(lambda: not world.cloud.up)


def test_a_stop_during_the_setup_of_8_workers_leaves_nothing_behind_and_a_resume_sets_them_up(tpux):
    module = """
        from tpux import hookimpl, sh
        @hookimpl
        def check(): yield sh("[ -e ~/ready ]")
        @hookimpl
        def setup(): yield sh("echo $$ >~/begun; [ -e {go} ] || sleep 1000; touch ~/ready", go=GO)
    """
    go = tpux.work / "go"
    tpux.plugin("tpux-slow", module.replace("GO", repr(str(go))), entries="slow = tpux_slow")
    job = tpux.create(
        "tpu: {accelerator: v4-64, keep_on_stop: 1h}\nsetup: {modules: [slow]}\n"
        "command: {cmd: echo up, grace_period: 1s}\n"
    )
    pids = []

    def all_begun():
        found = [path.read_text() for path in tpux.directory(job).glob("machines/*/worker-*/begun")]
        pids[:] = [int(text) for text in found if text.strip()]
        return len(pids) == 8

    tpux.until(all_begun, "for all workers")
    tpux("stop", job)
    assert tpux.show(job)["state"] == "stopped"
    assert [pid for pid in pids if tpux.alive(pid)] == []
    go.touch()
    tpux("resume", job)
    tpux("wait", job)
    assert tpux.output(job, worker=7) == b"up\n"


@pytest.mark.parametrize("again", [False, True])
def test_a_module_that_is_uninstalled_while_its_job_runs_stops_neither_program_nor_output(tpux, again):
    code = "from tpux import hookimpl, sh\n@hookimpl\ndef check(): yield sh('true')\n"
    module = tpux.plugin("tpux-note", code, entries="note = tpux_note")
    job = tpux.create(f"setup: {{modules: [note]}}\ncommand: {{cmd: '{TICKS}', grace_period: 1s}}\n")
    tpux.until(lambda: b"tick 3" in tpux.output_so_far(job), "for the program")
    for path in module.parent.glob("tpux_note*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    tpux.until(lambda: "cannot be used" in tpux.log() or "replacing process" in tpux.log(), "for the change to be seen")
    seen = tpux.output_so_far(job).count(b"tick")
    tpux.until(lambda: tpux.output_so_far(job).count(b"tick") > seen + 5, "for more output")
    if again:
        tpux.plugin("tpux-note", code + "# upgraded\n", entries="note = tpux_note")
        tpux.until(lambda: "replacing process" in tpux.log(), "for the new version")
    (tpux.machines(job) / "worker-0/end").touch()
    tpux("wait", job)
    assert tpux.show(job)["attempt"] == 1
    lines = tpux.output(job).splitlines()
    assert lines == [b"tick %d" % (n + 1) for n in range(len(lines))]


@root_only
def test_a_home_directory_that_cannot_be_written_is_not_needed(tpux):
    home = tpux.work / "user"
    home.mkdir()
    tpux.env["HOME"] = str(home)
    with read_only(home):
        assert "[0] fine" in tpux("run", tpux.config("command: {cmd: echo fine}\n")).stdout
        tpux.until_done()


@root_only
def test_a_worker_whose_home_becomes_read_only_says_so(tpux):
    job = tpux.create(f"job: {{rule: pass}}\ncommand: {{cmd: '{TICKS}', grace_period: 1s}}\n")
    tpux.until(lambda: b"tick 3" in tpux.output_so_far(job), "for the program")
    tpux("stop", job, "--keep")
    with read_only(tpux.machines(job) / "worker-0"):
        tpux("resume", job)
        tpux.until(lambda: "Read-only file system" in str(tpux.show(job)), "for the reason")
    tpux("delete", job, "-y")


@root_only
def test_a_store_that_becomes_read_only_loses_nothing(tpux):
    job = tpux.create(f"command: {{cmd: '{TICKS}', grace_period: 1s}}\n")
    tpux.until(lambda: b"tick 3" in tpux.output_so_far(job), "for the program")
    end = tpux.machines(job) / "worker-0/end"
    with read_only(tpux.home):
        done = tpux("stop", job, code=1)
        assert "Read-only file system" in done.stderr
        assert tpux.show(job)["state"] == "running"
        tpux.until(lambda: tpux.supervisor() is not None)
    end.touch()
    tpux("wait", job)
    assert tpux.show(job)["attempt"] == 1
    lines = tpux.output(job).splitlines()
    assert lines == [b"tick %d" % (n + 1) for n in range(len(lines))]


@root_only
def test_tmp_from_which_nothing_can_be_executed(tpux):
    with tempfile.TemporaryDirectory(dir="/var/tmp") as directory:
        config = Path(directory) / "job.yaml"
        config.write_text("command: {cmd: 'cat /proc/mounts; echo fine'}\n")
        # If the tests themselves are below /tmp, another directory takes its place.
        tmp = f"{directory}/tmp" if tpux.python.is_relative_to("/tmp") else "/tmp"
        Path(tmp).mkdir(exist_ok=True)
        script = 'mount -t tmpfs -o noexec tpux-test "$1" && cd "$0" && shift && exec "$@"'
        command = ["unshare", "-m", "sh", "-c", script, directory, tmp, str(tpux.python), "-m", "tpux.cli.main"]
        environment = {**tpux.env, "TPUX_HOME": f"{directory}/home", "HOME": directory, "TMPDIR": tmp}
        done = subprocess.run(
            [*command, "run", "job.yaml"], env=environment, capture_output=True, text=True, timeout=120
        )
        if "unshare" in done.stderr:
            pytest.skip(done.stderr)
        assert re.search(rf"\[0\] tpux-test {tmp} tmpfs .*noexec", done.stdout), done.stderr
        assert "[0] fine" in done.stdout


def test_a_large_log_is_fetched_with_little_memory(tpux):
    """With 200 MB instead of gigabytes: what memory it takes does not depend on the size."""
    job = tpux.create(
        "command: {cmd: 'head -c 200000000 /dev/zero | tr \"\\\\0\" x | fold -w 99; echo; echo last; sleep 3'}\n"
    )
    tpux.until(lambda: tpux.output_so_far(job).endswith(b"last\n"), "for the output")
    pid = tpux.supervisor()
    assert pid is not None
    used = int(re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())[1])
    assert used < 150_000
    tpux("wait", job)
    assert tpux("logs", job, "--tail", "1").stdout.endswith("last\n")
    assert len(tpux.output(job)) > 200_000_000
