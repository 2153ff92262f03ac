"""What a failure and Ctrl-C leave on the screen: the command that goes on."""

from __future__ import annotations

import re

import pytest

from tests.test_terminal import Terminal
from tpux.model.failures import FAILURE_KINDS


def test_a_failure_names_the_command_that_tries_again_with_a_change(tpux):
    done = tpux("run", tpux.config("command: {cmd: 'echo no; exit 3'}\n"), code=100)
    said = "the same would fail again; with a change, on the machines that it holds: tpux resume 1 KEY=VALUE"
    assert said in done.stderr
    assert f"try again:    {said}" in tpux("show", "1").stdout
    (tpux.work / "code").mkdir()
    (tpux.work / "code/x.py").write_text("raise SystemExit(4)")
    text = "code: {dir: code}\ncommand: {cmd: python3 x.py}\n"
    assert "tpux resume 2 --sync" in tpux("run", tpux.config(text), code=100).stderr
    (tpux.work / "code/x.py").write_text("print(1)")
    tpux("resume", "2", "--sync")
    tpux("wait", "2")
    assert "try again:" not in tpux("show", "2").stdout


def test_ctrl_c_while_waiting_says_what_continues(tpux):
    jobs = [tpux.create("command: {cmd: 'echo up; sleep 1000', grace_period: 1s}\n") for _ in range(2)]
    terminal = Terminal(tpux, "wait", *jobs)
    terminal.until("waiting for job 1: ")
    terminal.type(b"\x03")
    assert terminal.end() == 130
    assert "tpux wait 1 2" in re.sub(r"\s+", " ", terminal.text)
    assert "Traceback" not in terminal.text
    tpux("stop", *jobs)


AGAIN = "the same would fail again; "
SAID = {
    "maintenance": "on new machines: tpux resume {}",
    "host-lost": "on new machines: tpux resume {}",
    "unreachable": "once they can be reached, on new machines: tpux resume {}",
    "infra": "the program need not change: tpux resume {}",
    "service": "the program need not change: tpux resume {}",
    "tpu-busy": "once nothing else uses the TPU: tpux resume {}",
    "out-of-memory": AGAIN + "with a change, on the machines that it holds: tpux resume {} KEY=VALUE",
    "stockout": "the program need not change: tpux resume {}",
    "quota": AGAIN + "once the quota is raised: tpux resume {}",
    "auth": "once the credentials are valid: tpux resume {}",
    "config": AGAIN + "with a change, on the machines that it holds: tpux resume {} --config CONFIG",
    "setup": "with a change, on the machines that it holds: tpux resume {} --config CONFIG",
    "stalled": "the same may stall again: tpux resume {} continues from the last checkpoint",
    "incomplete": AGAIN + "with a change, on the machines that it holds: tpux resume {} KEY=VALUE",
    "plugin": AGAIN + "once the plugin is repaired: tpux resume {}",
    "program": AGAIN + "with a change, on the machines that it holds: tpux resume {} KEY=VALUE",
    "unknown": "the program need not change: tpux resume {}",
}


@pytest.mark.system
def test_each_kind_of_failure_has_a_command_that_tries_again(tpux):
    assert {*SAID} == {*FAILURE_KINDS} - {"preempted"}  # which no output can state
    failed = ", ".join(f"{kind}: '^was {kind}$'" for kind in SAID)
    text = f"command: {{cmd: 'echo was %s; exit 3'}}\nlog: {{failed: {{{failed}}}}}\njob: {{rule: pass}}\n"
    jobs = {kind: tpux("create", tpux.config(text % kind, f"{kind}.yaml")).stdout.strip() for kind in SAID}
    tpux("wait", *jobs.values(), code=100)
    for kind, said in SAID.items():
        assert f"failure:      {kind} on worker 0" in (shown := tpux("show", jobs[kind]).stdout)
        assert f"try again:    {said.format(int(jobs[kind]))}\n" in shown
