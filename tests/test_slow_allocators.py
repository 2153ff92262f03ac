"""Allocators whose API takes long: no turn waits for it, and nothing is released while machines are being requested."""

from __future__ import annotations

from pathlib import Path

import pytest

PLUGIN = """
from pathlib import Path
import dataclasses
import time
from tpux import Waiting, hookimpl
import tpux_local

HERE = Path(__file__).parent

def called(hook, request, text=""):
    with (HERE / "calls").open("a") as file:
        file.write(f"{int(request.labels['tpux-job'])} {hook}{text}\\n")
    while (HERE / f"{hook}-{int(request.labels['tpux-job'])}").exists() or (HERE / hook).exists():
        time.sleep(0.01)
    with (HERE / "calls").open("a") as file:
        file.write(f"{int(request.labels['tpux-job'])} {hook} returns\\n")

@hookimpl
def tpu_section(): return tpux_local.tpu_section()
@hookimpl
def provision(request):
    called("provision", request, " again" if request.interrupted else "")
    return Waiting("no capacity", poll_after=600.0) if (HERE / "full").exists() else tpux_local.provision(request)
@hookimpl
def inspect(request):
    called("inspect", request)
    return dataclasses.replace(tpux_local.inspect(request), poll_after=1.0)
@hookimpl
def release(request):
    called("release", request)
    return tpux_local.release(request)
@hookimpl
def connect(worker, job): return tpux_local.connect(worker, job)
"""
TICKS = "n=0; while sleep 0.1; do n=$((n+1)); echo tick $n; done"
CONFIG = f"tpu: {{allocation_mode: slow, accelerator: v4-8}}\ncommand: {{cmd: '{TICKS}', grace_period: 1s}}\n"


@pytest.fixture
def slow(tpux) -> Path:
    """Install the allocator `slow`, whose hooks block while a file of their name exists, for one job or for all."""
    return tpux.plugin("tpux-slow", PLUGIN, entries="slow = tpux_slow").parent


def calls(slow: Path, job: str) -> list[str]:
    lines = (slow / "calls").read_text().splitlines() if (slow / "calls").exists() else []
    return [call for number, _, call in (line.partition(" ") for line in lines) if number == str(int(job))]


def test_output_and_a_stop_do_not_wait_for_an_inspect_and_the_release_does(tpux, slow):
    job = tpux.create(CONFIG)
    tpux.until(lambda: b"tick 3" in tpux.output_so_far(job, 0), "for the program")
    (slow / "inspect").touch()
    tpux.until(lambda: calls(slow, job)[-1] == "inspect", "for a call that hangs")
    seen = tpux.output_so_far(job, 0).count(b"tick")
    tpux.until(lambda: tpux.output_so_far(job, 0).count(b"tick") > seen + 5, "for more output")
    tpux("stop", job, "--release", "--no-wait")
    tpux.until_state(job, "stopped")
    assert calls(slow, job)[-1] == "inspect", "a job has one call at a time"
    (slow / "inspect").unlink()
    tpux.until(lambda: calls(slow, job)[-2:] == ["release", "release returns"], "for the release")
    assert calls(slow, job)[-3] == "inspect returns"


def test_a_stop_waits_for_the_answer_to_provision_and_no_longer(tpux, slow):
    (slow / "provision").touch()
    job = tpux.create(CONFIG)
    tpux.until(lambda: calls(slow, job) == ["provision"], "for a call that hangs")
    tpux("stop", job, "--release", "--no-wait")
    other = tpux.create(CONFIG.replace(TICKS, "true").replace("slow", "local"))
    tpux.until_state(other, "succeeded")
    assert calls(slow, job) == ["provision"]
    assert tpux.show(job)["state"] == "provisioning"
    (slow / "provision").unlink()
    tpux.until(lambda: calls(slow, job)[-1] == "release returns", "for the release")
    assert calls(slow, job)[:3] == ["provision", "provision returns", "release"]
    assert tpux.show(job)["state"] == "stopped"


def test_a_stop_that_has_waited_for_an_answer_does_not_wait_for_the_next_poll(tpux, slow):
    (slow / "provision").touch()
    (slow / "full").touch()
    job = tpux.create(CONFIG)
    tpux.until(lambda: calls(slow, job) == ["provision"], "for a call that hangs")
    tpux("stop", job, "--release", "--no-wait")
    tpux.until(lambda: list(tpux.directory(job).glob("requests/*")), "for the request")
    (slow / "provision").unlink()
    tpux.until_state(job, "stopped")
    tpux.until(lambda: calls(slow, job)[-1] == "release returns", "for the release")


@pytest.mark.system
def test_jobs_whose_api_hangs_delay_no_other_job_of_the_same_allocator(tpux, slow):
    healthy = tpux.create(CONFIG)
    tpux.until(lambda: "inspect returns" in calls(slow, healthy), "for an answer that came in time")
    hung = [str(int(healthy) + number) for number in range(1, 15)]
    for number in hung:
        (slow / f"provision-{number}").touch()
    for _ in hung:
        tpux.create(CONFIG)
    tpux.until(lambda: sum(calls(slow, job) == ["provision"] for job in hung) >= 12, "for calls that hang")
    before = calls(slow, healthy).count("inspect returns")
    tpux.until(lambda: calls(slow, healthy).count("inspect returns") > before + 2, "for more answers")
    tpux("stop", healthy, "--release", "--no-wait")
    tpux.until(lambda: calls(slow, healthy)[-1] == "release returns", "for the release")
    for number in hung:
        (slow / f"provision-{number}").unlink()
    for job in hung:
        tpux("stop", job, "--release", "--no-wait")
    tpux.until(lambda: all(calls(slow, job)[-1:] in ([], ["release returns"]) for job in hung), "for the others")


@pytest.mark.system
def test_an_answer_that_comes_after_the_supervisor_has_ended_is_asked_for_again(tpux, slow):
    (slow / "provision").touch()
    job = tpux.create(CONFIG)
    tpux.until(lambda: calls(slow, job) == ["provision"], "for a call that hangs")
    tpux("supervisor", "stop")
    assert tpux.supervisor() is None
    assert calls(slow, job) == ["provision"], "the call has ended with the process"
    (slow / "provision").unlink()
    tpux("supervisor", "start")
    tpux.until_state(job, "running")
    assert calls(slow, job)[:2] == ["provision", "provision again"]
    tpux("delete", job, "-y")


@pytest.mark.system
def test_a_supervisor_that_ends_keeps_its_lock_until_the_allocator_has_answered(tpux, slow):
    (slow / "provision").touch()
    job = tpux.create(CONFIG)
    tpux.until(lambda: calls(slow, job) == ["provision"], "for a call that hangs")
    (tpux.home / "supervisor").mkdir(exist_ok=True)
    next(tpux.home.glob("supervisor/*/lock")).with_name("stop").touch()
    tpux.until(lambda: "ending, stopped by the user" in tpux.log(), "for the supervisor to end")
    assert tpux.supervisor() is not None
    (slow / "provision").unlink()
    tpux.until(lambda: tpux.supervisor() is None, "for the end of the supervisor")
    assert calls(slow, job) == ["provision", "provision returns"]
    next(tpux.home.glob("supervisor/*/stop")).unlink()
    tpux("supervisor", "start")
    tpux.until_state(job, "running")
    assert calls(slow, job)[2] == "provision again"
    tpux("delete", job, "-y")


@pytest.mark.system
def test_turns_continue_while_a_process_that_is_to_be_replaced_waits_for_an_allocator(tpux, slow):
    tpux.env["TPUX_CLOCK_RATE"] = "4"
    hung, healthy = tpux.create(CONFIG), tpux.create(CONFIG)
    tpux.until(lambda: b"tick 3" in tpux.output_so_far(healthy, 0), "for the program")
    with (slow / "tpux_slow.py").open("a") as module:
        module.write("# edited\n")
    tpux.until(lambda: "checking the installation" in tpux.log(), "for the change to be seen")
    (slow / f"inspect-{int(hung)}").touch()
    tpux.until(lambda: calls(slow, hung)[-1] == "inspect", "for a call that hangs")
    tpux.until(lambda: "waiting for calls of allocators" in tpux.log(), "for the check to pass")
    seen = tpux.output_so_far(healthy, 0).count(b"tick")
    tpux.until(lambda: tpux.output_so_far(healthy, 0).count(b"tick") > seen + 10, "for more output")
    assert "replacing process" not in tpux.log(), "the output has waited for the new process"
    (slow / f"inspect-{int(hung)}").unlink()
    tpux.until(lambda: "replacing process" in tpux.log(), "for the new process")
    tpux("stop", hung, healthy, "--release")
