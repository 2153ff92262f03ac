"""What a failure and Ctrl-C leave on the screen: the command that goes on."""

from __future__ import annotations

import re

from tests.test_terminal import Terminal


def test_a_failure_names_the_command_that_tries_again_with_a_change(tpux):
    done = tpux("run", tpux.config("command: {cmd: 'echo no; exit 3'}\n"), code=100)
    said = "the same would fail again; with a change, on the machines that it holds: tpux rerun 1 KEY=VALUE"
    assert said in done.stderr
    assert f"try again:    {said}" in tpux("show", "1").stdout
    (tpux.work / "code").mkdir()
    (tpux.work / "code/x.py").write_text("raise SystemExit(4)")
    text = "code: {dir: code}\ncommand: {cmd: python3 x.py}\n"
    assert "tpux rerun 2 --sync" in tpux("run", tpux.config(text), code=100).stderr
    (tpux.work / "code/x.py").write_text("print(1)")
    tpux("rerun", "2", "--sync")
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
