"""`tpux diagnose` and `tpux solve`: what is wrong with a job and its workers, and its repair; and its progress."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest
from tests.tiers import representative

from tpux_doctor import examine, facts
from tpux_doctor.examine import describe_facts

CONFIG = """
job: {{name: busy}}
tpu: {{node_count: 2}}
setup: {{modules: [fragile, blind]}}
fragile: {{key: '${{env:DIAGNOSE_KEY}}'}}
blind: {{key: '${{env:DIAGNOSE_KEY}}'}}
libtpu: {{devices: ['{path}/accel*'], directory: {path}/tmp}}
command:
  cmd: 'echo "wandb: View run fast-1 at: https://w.ai/runs/abc"; echo step 5 loss 0.25; exec sleep 1000'
  env: {{PYTHONPATH: '{path}/lib'}}
  grace_period: 1s
"""
HOLD = "import signal, sys; file = open(sys.argv[1]); print(1, flush=True); signal.pause()"
JAX = "__version__ = '9.9'\ndef devices():\n    raise RuntimeError('TPU backend setup failed\\nmore')\n"
FRAGILE = """
    from tpux import Finding, Section, hookimpl, sh

    class Keys(Section):
        key: str = ""

    @hookimpl
    def config_section():
        return Keys

    class Blind:
        @hookimpl
        def config_section(self):
            return Keys

        @hookimpl
        def setup(self):
            yield sh("true")

    blind = Blind()

    @hookimpl
    def check(worker):
        yield sh("! [ -e ~/broken ]")

    @hookimpl
    def setup():
        yield sh("rm -f ~/broken")

    @hookimpl
    def diagnose(worker):
        if worker.index == 1:
            yield sh("echo it is dusty; exit 3")
        return [Finding("note", "it is clean")]

    @hookimpl
    def solve():
        yield sh("rm -f ~/dust")
"""


@pytest.mark.system
def test_diagnose_and_solve(tpux, tmp_path):
    tpux.plugin(
        "tpux-plugin-fragile", FRAGILE, entries="fragile = tpux_plugin_fragile\nblind = tpux_plugin_fragile:blind"
    )
    tpux.env["DIAGNOSE_KEY"] = "hunter3"
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/jax.py").write_text(JAX)
    (tmp_path / "tmp").mkdir()
    (tmp_path / "accel0").touch()
    job = tpux.create(CONFIG.format(path=tmp_path))
    tpux.until(lambda: tpux.show(job)["state"] == "running")
    tpux.until(lambda: tpux.show(job)["progress"])
    assert "progress:     step 5, loss 0.25, read " in tpux("show", job).stdout
    assert "\nrun:          https://w.ai/runs/abc\n" in tpux("show", job).stdout
    assert "step 5, loss 0.25" in tpux("list").stdout
    assert "local.PATH" not in tpux("show", job).stdout, "an internal of the plugin"
    tpux("exec", job, "--worker", "1", "touch ~/broken")
    running = tpux("diagnose", job, code=1).stdout
    assert "ok      job 1 busy: running: attempt 1\n" in running
    assert ", 2 worker(s), zone -: ready\n" in running
    assert "ok      worker 0: module fragile: ready\n" in running
    assert "        hint: stop the job first (tpux stop 1), then: tpux setup 1\n" in running
    assert "note    worker 0: it is clean\n" in running
    assert "warning worker 1: fragile could not examine it: `echo it is dusty; exit 3` exited with 3: it is dusty" in (
        running
    )
    assert "hint: try it there: tpux exec 1 --worker 1 COMMAND\n" in running
    assert "jax" not in running, "JAX is not asked while the program runs"
    assert "tpux diagnose 1" in tpux("solve", job, code=2).stderr

    tpux("stop", job)
    tpux.until(lambda: not list(tpux.home.glob("jobs/*/*/secrets.json")))
    assert "ready: its config" not in tpux("check", job, code=1).stdout, "this shell has the secret"
    del tpux.env["DIAGNOSE_KEY"]
    unknown = "its config cannot be compared with its last set-up: DIAGNOSE_KEY was deleted when the job ended"
    checked = tpux("check", job, code=1).stdout
    assert f"worker 0  fragile  ready: {unknown}; export it to compare\n" in checked
    assert f"worker 0  blind  unknown: {unknown}; export it to compare\n" in checked
    env = {**os.environ, "API_KEY": "hunter2"}
    holder = subprocess.Popen([sys.executable, "-c", HOLD, tmp_path / "accel0"], stdout=subprocess.PIPE, env=env)
    try:
        assert holder.stdout is not None
        holder.stdout.readline()
        rows = tpux("describe", job, "--json", code=1)
        found = json.loads(rows.stdout)
        problems = {(one["worker"], one["message"].partition(" exited")[0].partition(":")[0]) for one in found}
        assert {(1, "module fragile"), (0, "jax 9.9"), (1, "jax 9.9")} <= problems
        [jax] = [one for one in found if one["worker"] == 0 and one["message"].startswith("jax")]
        assert jax["message"] == "jax 9.9: jax.devices() failed: RuntimeError: TPU backend setup failed"
        [held, _] = [one for one in found if f"process {holder.pid} " in one["message"]]
        assert held["hint"] == "tpux solve 1 --force ends it"
        assert "hunter2" not in rows.stdout
        assert all(one["hint"] for one in found if one["level"] in {"error", "warning"})

        planned = tpux("solve", job, "--dry-run").stdout
        assert f"worker 0, 1  libtpu  would not end process {holder.pid} ({sys.executable} -c " in planned
        assert "worker 0, 1  libtpu  would remove nothing while the accelerator is held\n" in planned
        assert "worker 0, 1  fragile  would run: rm -f ~/dust\n" in planned
        assert "$ " not in planned, "no shell source"
        scripts = tpux("solve", job, "--dry-run", "--steps").stdout
        assert scripts.startswith(planned)
        assert "libtpu: solve on worker 0, 1\n  $ # End what holds the TPU" in scripts
        rows = json.loads(tpux("solve", job, "--dry-run", "--force", "--worker", "1", "--json").stdout)
        [forced] = [row for row in rows if row["plugin"] == "libtpu"]
        assert (forced["worker"], forced["problem"]) == (1, "")
        assert forced["would"][0].startswith(f"would end process {holder.pid} (")
        assert forced["steps"][0]["script"].startswith("# End what holds the TPU")
        refused = tpux("solve", job, "--worker", "0", code=1)
        assert "worker 0: libtpu: `End what holds the TPU, and remove its stale lock file` exited" in refused.stderr
        assert f"process {holder.pid} " in refused.stderr
        assert holder.poll() is None
        assert f"ending process {holder.pid}, which holds" in tpux("solve", job, "--force").stdout
        assert holder.wait(timeout=30) == -15
    finally:
        holder.kill()
        holder.communicate()
    tpux("stop", job, "--release")
    released = tpux("diagnose", job)
    assert "stopped: stopped by user" in released.stdout
    assert tpux.show(job)["progress"]["step"] == 5, "of the attempt's end"
    assert "worker" not in released.stdout
    unknown = tpux("diagnose", "nothing", code=2).stderr
    assert "no job nothing (no TPU of that name was looked for: no Google Cloud project" in unknown


HANGS = """
import os, time
__version__ = '9.9'

def devices():
    device = open('{path}/accel0')
    with open('{path}/pid.new', 'w') as file:
        file.write(str(os.getpid()))
    os.rename('{path}/pid.new', '{path}/pid')
    time.sleep(1000)
"""


@pytest.fixture
def interrupted(tpux, tmp_path):
    """Return a job that has ended, and a function that interrupts `tpux diagnose` while JAX holds the device.

    It returns the process that does.
    """
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/jax.py").write_text(HANGS.format(path=tmp_path))
    (tmp_path / "accel0").touch()
    is_free = f"if kill -0 $(cat {tmp_path}/pid); then echo the TPU is held; exit 1; fi"
    job = tpux.create(
        f"libtpu: {{devices: ['{tmp_path}/accel*'], directory: {tmp_path}}}\njob: {{rule: pass}}\n"
        f"command: {{cmd: '[ $TPUX_ATTEMPT = 1 ] && exit 1; {is_free}', env: {{PYTHONPATH: '{tmp_path}/lib'}}}}\n"
    )
    tpux.until_state(job, "failed")

    def interrupt(how: signal.Signals) -> int:
        (tmp_path / "pid").unlink(missing_ok=True)
        command = tpux.popen("diagnose", job)
        tpux.until((tmp_path / "pid").exists, "for JAX to be asked")
        command.send_signal(how)
        command.communicate(timeout=60)
        return int((tmp_path / "pid").read_text())

    return job, interrupt


@pytest.mark.parametrize("how", representative([signal.SIGINT, signal.SIGHUP, signal.SIGKILL]))
def test_an_interrupted_diagnosis_is_ended_by_solve(tpux, interrupted, how):
    job, interrupt = interrupted
    pid = interrupt(how)
    planned = tpux("solve", job, "--dry-run").stdout
    assert f"would end process {pid} (" in planned
    assert "tpux diagnose asks JAX" in planned
    assert "would remove nothing" not in planned
    assert f"ending process {pid}, which holds" in tpux("solve", job).stdout
    assert not tpux.alive(pid)


def test_an_interrupted_diagnosis_is_ended_before_the_next_attempt(tpux, interrupted):
    job, interrupt = interrupted
    pid = interrupt(signal.SIGKILL)
    tpux("resume", job)
    tpux("wait", job)
    assert not tpux.alive(pid)


def test_a_hint_names_only_commands_that_there_are():
    dead = facts.WorkerFacts(mounts=(facts.Mount("bucket", "/mnt/a b", "fuse.gcsfuse", "no answer within 5 s"),))
    unmount = "-- fusermount -uz '/mnt/a b'"
    assert describe_facts(dead, "7", "; then tpux setup 7")[-1].hint == (
        f"unmount it: tpux exec 7 --host {unmount}; then tpux setup 7"
    )
    assert describe_facts(dead, "my-tpu", "")[-1].hint == f"unmount it: tpux exec my-tpu --host {unmount}"


@pytest.mark.parametrize(
    ("kind", "command"),
    [
        ("fuse", "fusermount -uz"),
        ("fuse.sshfs", "fusermount -uz"),
        *((kind, "sudo umount -l") for kind in ("nfs", "nfs4", "cifs", "smb3", "9p", "lustre", "ceph")),
    ],
)
def test_only_a_mount_of_fuse_is_unmounted_by_fusermount(kind, command):
    hung = facts.WorkerFacts(mounts=(facts.Mount("server:/data", "/data", kind, "no answer within 5 s"),))
    assert describe_facts(hung, "7", "")[-1].hint == f"unmount it: tpux exec 7 --host -- {command} /data"


def test_the_process_that_asks_jax_ends_without_its_client(tmp_path):
    (tmp_path / "timeout").write_text(f'#!/bin/sh\necho "$@" >{tmp_path}/limit; shift 3; exec "$@"\n')
    (tmp_path / "timeout").chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(["sh", "-c", examine._JAX], env=environment, capture_output=True, check=True)
    assert done.stdout.startswith(b"tpux-jax {")
    _, _, limit, *_ = (tmp_path / "limit").read_text().split()
    assert examine.JAX_TIMEOUT < float(limit) < 2 * examine.JAX_TIMEOUT
