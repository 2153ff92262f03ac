"""Tags: words that select jobs."""

from __future__ import annotations

SUCCEEDS = "command: {cmd: 'true'}\n"


def ids(tpux, *words):
    return [row["id"].lstrip("0") for row in tpux.json("list", *words)]


def test_jobs_have_tags_that_can_be_changed(tpux):
    tpux.create(SUCCEEDS, "job.tags=[sweep, lr=0.1]")
    tpux.create(SUCCEEDS, "job.tags=sweep")
    tpux.create(SUCCEEDS)
    assert ids(tpux, "--tag", "sweep") == ["1", "2"]
    assert ids(tpux, "--tag", "sweep", "--tag", "lr=0.1") == ["1"]
    assert "job 2: draft x/y\n" in tpux("tag", "2", "+draft", "-sweep", "-nothing", "+x/y", "+draft").stderr
    assert ids(tpux, "--tag", "sweep") == ["1"]
    assert tpux("tag", "1").stdout == "1 sweep lr=0.1\n"
    tpux("tag", "--tag", "draft", "+both")
    assert tpux.show("2")["tags"] == ["draft", "x/y", "both"]
    assert "tags:         sweep, lr=0.1" in tpux("show", "1").stdout


def test_a_word_that_is_no_tag_is_refused(tpux):
    tpux.create(SUCCEEDS)
    for wrong in ("+a b", "+", "+ü", f"+{'x' * 101}"):
        assert "is not a tag" in tpux("tag", "1", wrong, code=2).stderr
    assert "no job selected" in tpux("tag", "+a", code=2).stderr
    assert "job.tags" in tpux("create", tpux.config(SUCCEEDS), "job.tags=[a b]", code=2).stderr


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
