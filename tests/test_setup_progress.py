"""What a user reads while the workers are set up: which module, on how many workers, and the step of a slow one."""

from __future__ import annotations

import re

import pytest

pytestmark = pytest.mark.process

SLOW = """
from tpux import hookimpl, sh
@hookimpl
def check(): yield sh("test -e ready")
@hookimpl
def setup(worker):
    script = "# install the requirements\\n"
    if worker.index == 2:
        script += "until [ -e GO ]; do sleep 0.1; done\\n"
    yield sh(script + "touch ready")
"""


def test_the_reason_names_the_module_the_workers_that_are_ready_and_the_step_of_one_that_is_not(tpux):
    go = tpux.work / "go"
    tpux.plugin("tpux-slow", SLOW.replace("GO", str(go)), entries="slow = tpux_slow")
    job = tpux.create(
        "tpu: {accelerator: v4-32}\nsetup: {modules: [slow]}\ncommand: {cmd: 'true'}\n",
    )
    why = "slow: ready on 3 of 4 workers (worker 2: install the requirements)"
    tpux.until(lambda: tpux.show(job)["why"] == why)
    lasts = re.escape(why) + r", for [\d.]+ m?i?n? ?s"
    assert re.search(lasts, tpux("list").stdout)
    assert re.search(r"state: +setting-up: " + lasts, tpux("show", job).stdout)
    go.touch()
    tpux("wait", job)
    told = [event["why"] for event in tpux.events(job, "waiting")]
    assert told == ["setting up slow on 4 worker(s)", why], "a step that ends at once is no news"


TALKS = """
from tpux import hookimpl, sh
@hookimpl
def check(): yield sh("test -e ready")
@hookimpl
def setup(worker):
    yield sh("# build it\\necho building on $HOME; until [ -e GO ]; do sleep 0.1; done; echo built; touch ready")
"""


def test_following_a_job_shows_the_log_of_the_module_and_then_the_output_of_the_program(tpux):
    go = tpux.work / "go"
    tpux.plugin("tpux-slow", TALKS.replace("GO", str(go)), entries="slow = tpux_slow")
    job = tpux.create("setup: {modules: [slow]}\ncommand: {cmd: echo trained}\n")
    logs = list[bytes]()
    followed = tpux.popen("logs", "-f", job)
    for line in followed.stdout:
        logs.append(line.decode().rstrip())
        if "building on" in logs[-1]:
            go.touch()
    assert followed.wait(60) == 0
    said = [line for line in logs if "built" in line or "trained" in line or "building on" in line]
    assert said[-2:] == ["[0] slow: built", "[0] trained"]
    assert said[0].startswith("[0] slow: building on /")
    assert "[0] slow: == round 1, try 1: setup slow ==" in logs
    assert tpux("logs", "-f", job).stdout == "[0] trained\n", "after the set-up its log is not printed any more"


def test_the_output_of_run_is_that_of_the_program_alone(tpux):
    tpux.plugin("tpux-slow", TALKS.replace("GO", str(tpux.work)), entries="slow = tpux_slow")
    assert (
        tpux("run", tpux.config("setup: {modules: [slow]}\ncommand: {cmd: echo trained}\n")).stdout == "[0] trained\n"
    )
