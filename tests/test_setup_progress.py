"""What a user reads while the workers are set up: which module, on how many workers, and the step of a slow one."""

from __future__ import annotations

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
    assert why in tpux("list").stdout
    go.touch()
    tpux("wait", job)
    told = [event["why"] for event in tpux.events(job, "waiting")]
    assert told == ["setting up slow on 4 worker(s)", why], "a step that ends at once is no news"
