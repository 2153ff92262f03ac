"""Which job a command means: an id, a name, `-`, or nothing."""

from __future__ import annotations

SLEEPS = "job: {{name: {name}}}\ncommand: {{cmd: 'echo up; sleep 1000', grace_period: 1s}}\n"
ENDS = "job: {{name: {name}}}\ncommand: {{cmd: 'echo {name}'}}\n"


def test_without_a_name_the_only_active_job_is_meant(tpux):
    assert "no jobs are active" in tpux("show", code=2).stderr
    tpux("run", tpux.config(ENDS.format(name="done")))
    first = tpux.create(SLEEPS.format(name="first"))
    tpux.until(lambda: b"up" in tpux.output_so_far(first))
    assert tpux.json("show")["name"] == "first"
    assert tpux("logs").stdout == "[0] up\n"
    tpux.create(SLEEPS.format(name="second"))
    refused = tpux("logs", code=2).stderr
    assert "2 jobs are active" in refused
    assert "2 (first, running), 3 (second, " in refused
    for command in ("stop", "delete", "exec"):
        assert tpux(command, code=2).stderr, "never without a name"
    tpux("stop", "first", "second")


def test_the_last_job_and_the_active_one_of_a_name(tpux):
    assert "there is no job yet" in tpux("show", "-", code=2).stderr
    tpux("run", tpux.config(ENDS.format(name="train")))
    live = tpux.create(SLEEPS.format(name="train"))
    tpux("run", tpux.config(ENDS.format(name="train")))
    tpux("run", tpux.config(ENDS.format(name="other")))
    shown = tpux("logs", "-")
    assert shown.stdout == "[0] other\n"
    assert "- is job 4 (other)" in shown.stderr
    tpux.until(lambda: b"up" in tpux.output_so_far(live))
    assert tpux("exec", "train", "echo", "-n", "hello").stdout == "[0] hello\n"
    stopped = tpux("stop", "train").stderr
    assert "using job 2" in stopped
    assert tpux.show(live)["state"] == "stopped"
    tpux("delete", "-y", "-")
    assert [row["id"] for row in tpux.json("list")] == ["000001", "000002", "000003"]
    tpux("delete", "-y", "3")
    chosen = tpux("delete", "-y", "train").stderr
    assert "2 jobs are called train: 1 (succeeded), 2 (stopped); using job 2" in chosen, "the newest, if none is active"
    assert [row["id"] for row in tpux.json("list")] == ["000001"]
