"""Tags: words that select jobs."""

from __future__ import annotations

SUCCEEDS = "command: {cmd: 'true'}\n"


def ids(tpux, *words):
    return [row["id"].lstrip("0") for row in tpux.json("list", *words)]


def test_jobs_have_tags_that_can_be_changed(runner):
    runner.create(SUCCEEDS, "job.tags=[sweep, lr=0.1]")
    runner.create(SUCCEEDS, "job.tags=sweep")
    runner.create(SUCCEEDS)
    assert ids(runner, "--tag", "sweep") == ["1", "2"]
    assert ids(runner, "--tag", "sweep", "--tag", "lr=0.1") == ["1"]
    assert "job 2: draft x/y\n" in runner("tag", "2", "+draft", "-sweep", "-nothing", "+x/y", "+draft").stderr
    assert ids(runner, "--tag", "sweep") == ["1"]
    assert runner("tag", "1").stdout == "1 sweep lr=0.1\n"
    runner("tag", "--tag", "draft", "+both")
    assert runner.show("2")["tags"] == ["draft", "x/y", "both"]
    assert "tags:         sweep, lr=0.1" in runner("show", "1").stdout


def test_a_word_that_is_no_tag_is_refused(runner):
    runner.create(SUCCEEDS)
    for wrong in ("+a b", "+", "+ü", "-", f"+{'x' * 101}"):
        assert "is not a tag" in runner("tag", "1", wrong, code=2).stderr
    assert "no job selected" in runner("tag", "+a", code=2).stderr
    assert "job.tags" in runner("create", runner.config(SUCCEEDS), "job.tags=[a b]", code=2).stderr


def test_commands_select_jobs_by_tag(tpux):
    text = "command: {cmd: 'exit 3'}\n"
    jobs = [tpux.create(text, "job.tags=[a]"), tpux.create(text, "job.tags=[b]")]
    for job in jobs:
        tpux("wait", job, code=100)
    assert "give job ids, or --state, --name and --tag, not both" in tpux("stop", "1", "--tag", "a", code=2).stderr
    tpux("rerun", "--tag", "b")
    tpux("wait", jobs[1], code=100)
    assert [tpux.show(job)["attempt"] for job in jobs] == [1, 2]
    tpux("resume", "--tag", "a")
    tpux("wait", jobs[0], code=100)
    assert [tpux.show(job)["attempt"] for job in jobs] == [2, 2]
    tpux("clean", "--tag", "a", "--all", "-y")
    assert ids(tpux) == ["2"]
    tpux("delete", "--tag", "b", "-y")
    assert ids(tpux) == []
