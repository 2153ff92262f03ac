"""Jobs whose plugin was uninstalled: what can be ended and released is, and the rest is explained."""

from __future__ import annotations

import os
from pathlib import Path

ALLOCATOR = """
import os
from pathlib import Path
from dataclasses import replace
from tpux import MachineStatus, hookimpl
import tpux_local

HERE = Path(__file__).parent

@hookimpl
def tpu_section(): return tpux_local.tpu_section()
@hookimpl
def resolve(job): return {"project": "weather"}
@hookimpl
def provision(request):
    ready = tpux_local.provision(request)
    return replace(ready, allocation=replace(ready.allocation, transport=TRANSPORT, costs=True, zone="us-central2-b"))
@hookimpl
def inspect(request): return MachineStatus("ready")
@hookimpl
def release(request):
    if (HERE / "api-fails").exists(): raise ValueError("reauthenticate")
    (HERE / "released").touch()
    return tpux_local.release(request)
"""
TRANSPORT = """
from tpux import hookimpl
import tpux_local

@hookimpl
def connect(worker, job): return tpux_local.connect(worker, job)
"""
ENVIRONMENT = """
from dataclasses import replace
import os
from pathlib import Path
from tpux import hookimpl, sh

HERE = Path(__file__).parent

@hookimpl
def setup(): yield sh("true")
@hookimpl
def run(command): return replace(command, stop=(sh(f"touch {HERE}/stopped"),))
"""
CODE = {
    "cloud": ALLOCATOR.replace("TRANSPORT", "'local'"),
    "wired": ALLOCATOR.replace("TRANSPORT", "'wire'"),
    "wire": TRANSPORT,
    "box": ENVIRONMENT,
}


def install(tpux, *names: str) -> Path:
    """Install a plugin of each name; return their directory."""
    tpux.env["TPUX_CLOCK_RATE"] = "10"
    for name in names:
        module = tpux.plugin(f"tpux-{name}", CODE[name], entries=f"{name} = tpux_{name}")
    return module.parent


def start(tpux, *, allocator: str = "local", environment: str = "") -> str:
    """Return a job whose program runs until it gets SIGTERM."""
    environment = f"job: {{env_type: {environment}}}\n" if environment else ""
    text = "trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.1; done"
    job = tpux.create(f'{environment}tpu: {{allocation_mode: {allocator}}}\ncommand: {{cmd: "{text}"}}\n')
    tpux.until(lambda: tpux.output_so_far(job) == b"up\n")
    return job


def name_of(tpux, job: str) -> str:
    """Return the name under which a job has requested its machines."""
    return str(tpux.events(job, "allocation-requested")[0]["name"])


def uninstall(tpux, site: Path, name: str) -> None:
    """Uninstall a plugin while no supervisor runs."""
    tpux("supervisor", "stop")
    (site / f"tpux_{name}.py").unlink()
    (site / f"tpux_{name}-1.0.dist-info").rename(site / f"removed-{name}")


def reinstall(site: Path, name: str) -> None:
    (site / f"tpux_{name}.py").write_text(CODE[name])
    (site / f"removed-{name}").rename(site / f"tpux_{name}-1.0.dist-info")


def test_a_stop_ends_the_program_of_a_job_whose_environment_is_gone(tpux):
    site = install(tpux, "box")
    job = start(tpux, environment="box")
    uninstall(tpux, site, "box")
    done = tpux("stop", job)
    assert "waiting for job 1: stopping: no plugin 'box' is installed" in done.stderr
    assert "stopped" in done.stderr
    assert "the plugin box is not usable, so what it started apart from the program may still run" in done.stderr
    assert tpux.output(job).endswith(b"bye\n")
    assert f"job {int(job)} deleted" in tpux("delete", job, "-y").stderr


def test_a_job_whose_plugin_is_disabled_in_the_supervisor_continues_when_it_is_not(tpux):
    install(tpux, "box")
    job = start(tpux, environment="box")
    tpux("supervisor", "stop")
    tpux.env["TPUX_DISABLED_PLUGINS"] = "box"
    tpux("supervisor", "start")
    why = (
        "the plugin box is disabled; remove box from TPUX_DISABLED_PLUGINS and restart the supervisor:"
        " `tpux supervisor stop`, then `start`; retrying"
    )
    tpux.until(lambda: tpux.show(job)["why"] == why, "for the job to say what it waits for")
    del tpux.env["TPUX_DISABLED_PLUGINS"]
    tpux("supervisor", "stop")
    tpux("supervisor", "start")
    tpux.until(lambda: tpux.show(job)["why"] == "attempt 1")
    tpux("stop", job)


def test_a_plugin_that_is_installed_again_in_time_takes_part_in_the_stop(tpux):
    site = install(tpux, "box")
    tpux.env["TPUX_CLOCK_RATE"] = "1"
    job = start(tpux, environment="box")
    uninstall(tpux, site, "box")
    tpux("stop", job, "--no-wait")
    tpux.until(lambda: "no plugin 'box' is installed" in str(tpux.show(job)["why"]))
    tpux("supervisor", "stop")
    reinstall(site, "box")
    tpux("supervisor", "start")
    tpux.until_state(job, "stopped")
    assert (site / "stopped").exists()
    assert "not usable" not in tpux.show(job)["why"]


def test_machines_are_released_although_their_transport_is_gone(tpux):
    site = install(tpux, "wired", "wire")
    job = start(tpux, allocator="wired")
    uninstall(tpux, site, "wire")
    done = tpux("stop", job)
    assert "stopped by user; no plugin 'wire' is installed, so programs may still run on the workers" in done.stderr
    assert not (site / "released").exists()
    assert "its machines are released" in tpux("stop", job, "--release").stderr
    assert (site / "released").exists()


def test_a_job_is_deleted_although_its_transport_is_gone(tpux):
    site = install(tpux, "wired", "wire")
    job = start(tpux, allocator="wired")
    uninstall(tpux, site, "wire")
    assert f"job {int(job)} deleted" in tpux("delete", job, "-y").stderr
    assert (site / "released").exists()


def test_without_its_allocator_a_job_is_stopped_and_its_release_waits(tpux):
    site = install(tpux, "cloud")
    job = start(tpux, allocator="cloud")
    uninstall(tpux, site, "cloud")
    done = tpux("stop", job, "--release", code=1)
    assert tpux.output(job).endswith(b"bye\n"), "the transport is installed, so the program is ended"
    assert "stopped; the machines cannot be released: no plugin 'cloud' is installed" in done.stderr
    shown = tpux("show", job).stdout
    assert "the machines cannot be released: no plugin 'cloud' is installed" in shown
    assert "hint:" in shown
    done = tpux("delete", job, "-y", code=1)
    assert "not deleted: the machines cannot be released: no plugin 'cloud' is installed" in done.stderr
    assert f"`tpux delete {int(job)} --force`" in done.stderr
    tpux("supervisor", "stop")
    reinstall(site, "cloud")
    tpux("supervisor", "start")
    tpux.until(lambda: not list(tpux.home.glob(f"jobs/*/{job}")), "for the deletion that was requested")
    assert (site / "released").exists()


def test_force_removes_the_record_and_names_the_machines(tpux):
    site = install(tpux, "cloud")
    job = start(tpux, allocator="cloud")
    uninstall(tpux, site, "cloud")
    machines = f"{name_of(tpux, job)} in us-central2-b (cloud.project: weather)"
    done = tpux("delete", job, "--force", code=2)
    assert "Confirmation needed" in done.stderr
    removed = f"the record of job {int(job)} is removed and they remain"
    assert f"warning: if its machines cannot be released, {removed}" in done.stderr
    assert machines in done.stderr
    done = tpux("delete", job, "--force", "-y")
    assert f"job {int(job)} removed; these machines were not released: {machines}" in done.stderr
    assert not list(tpux.home.glob(f"jobs/*/{job}"))
    assert machines in tpux.log()


def test_force_removes_a_job_without_its_config(tpux):
    job = start(tpux)
    tpux("supervisor", "stop")
    (tpux.directory(job) / "resolved.json").write_text("{")
    tpux.env["TPUX_CLOCK_RATE"] = "10"
    done = tpux("delete", job, "-y", code=1)
    assert "resolved.json" in done.stderr
    assert "--force" in done.stderr
    assert f"job {int(job)} removed" in tpux("delete", job, "--force", "-y").stderr


def test_force_releases_what_can_be_released(tpux):
    site = install(tpux, "cloud")
    job = start(tpux, allocator="cloud")
    assert f"job {int(job)} deleted" in tpux("delete", job, "--force", "-y").stderr
    assert (site / "released").exists()


def test_force_gives_up_on_a_release_that_keeps_failing(tpux):
    site = install(tpux, "cloud")
    tpux.env["TPUX_CLOCK_RATE"] = "100"
    job = start(tpux, allocator="cloud")
    machines = f"{name_of(tpux, job)} in us-central2-b"
    (site / "api-fails").touch()
    done = tpux("delete", job, "--force", "-y")
    assert f"job {int(job)} removed; these machines were not released: {machines}" in done.stderr
    log = next(tpux.home.glob("supervisor/*/log")).read_text()
    assert log.count("reauthenticate\n") >= 6, "tried for a while first"


MODULE = "from tpux import hookimpl, sh\n@hookimpl\ndef check():\n    yield sh('true')\n"
CONFIG = "setup: {modules: [loc]}\ncommand: {cmd: echo hello}\n"


def test_a_plugin_that_only_the_shell_can_find_is_refused_when_a_job_is_created(tpux):
    """The supervisor starts in `/`, and keeps the PYTHONPATH that it was started with."""
    tpux.plugin("tpux-loc", MODULE, entries="loc = tpux_loc")
    path, config = tpux.env["PYTHONPATH"], tpux.config(CONFIG)
    message = "module 'loc': the plugin loc is broken: the supervisor, which runs jobs, cannot find it"
    tpux.env["PYTHONPATH"] = os.path.relpath(path, tpux.work)
    assert message in tpux("create", config, code=2).stderr
    tpux.env["PYTHONPATH"] = path
    tpux("run", config)
    tpux.until_done()

    del tpux.env["PYTHONPATH"]
    other = tpux.create("command: {cmd: sleep 1000, grace_period: 1s}\n")
    tpux("supervisor", "start")
    tpux.env["PYTHONPATH"] = path
    refused = tpux("create", tpux.config(CONFIG), code=2).stderr
    assert message in refused
    assert "`tpux supervisor stop` and `start`" in refused
    tpux("supervisor", "stop")
    tpux("supervisor", "start")
    tpux("run", tpux.config(CONFIG))
    tpux("stop", other)
