"""Store files that are torn, corrupt or of another version: rebuilt if possible, otherwise reported."""

from __future__ import annotations

import getpass
import json
import subprocess
import sys

import pytest

SUCCEEDS = "command: {cmd: echo fine}\n"
RUNS = "command: {cmd: 'echo up; while :; do sleep 0.1; done', grace_period: 1s}\n"
JUNK = [
    "",
    "{",
    "null",
    "[]",
    '"text"',
    '{"format": 2, "state": {"id": 1}, "offset": 0}',
    '{"state": {"id": 1}, "offset": 0}',
    "\x00\xff",
    '{"format": 2, "state": [], "offset": 0}',
    '{"format": 2, "state": {}, "offset": "x"}',
]


def test_a_corrupt_state_is_rebuilt(tpux):
    tpux("run", tpux.config("command: {cmd: exit 1}\n"), code=100)
    tpux.until_done()
    before = tpux.show("1")
    state = tpux.directory("000001") / "state.json"
    for junk in JUNK:
        state.write_text(junk, encoding="latin-1")
        assert tpux.show("1") == before
    assert tpux.json("list")[0]["state"] == "failed"
    tpux("resume", "1")
    tpux("wait", "1", code=100)
    assert json.loads(state.read_text())["state"]["attempt"] == 2


def test_a_snapshot_that_is_newer_than_the_events_is_ignored(tpux):
    tpux("run", tpux.config(SUCCEEDS))
    tpux.until_done()
    state = tpux.directory("000001") / "state.json"
    content = json.loads(state.read_text())
    state.write_text(json.dumps({**content, "offset": content["offset"] + 100}))
    assert tpux.show("1")["state"] == "succeeded"


@pytest.mark.system
def test_a_corrupt_request_is_ignored(tpux):
    job = tpux.create(RUNS)
    tpux.until(lambda: tpux.output_so_far(job) == b"up\n" and tpux.supervisor())
    pid = tpux.supervisor()
    directory = tpux.directory(job) / "requests"
    directory.mkdir()
    for number, junk in enumerate(
        [
            "",
            "{",
            "null",
            '{"action": "dance"}',
            '{"action": []}',
            '{"action": "stop", "options": {"release": "maybe"}}',
            '{"action": "stop", "options": {"number": [1]}}',
        ]
    ):
        (directory / f"{number:06}.json").write_text(junk)
        (tpux.home / f"supervisor/{getpass.getuser()}/wake").touch()
        tpux("wait", job, "--timeout", "0.3", code=1)
    assert tpux.supervisor() == pid
    tpux("stop", job)
    assert tpux.show(job)["state"] == "stopped"


def test_a_torn_last_event_is_truncated_by_the_next_writer(tpux):
    tpux("run", tpux.config("command: {cmd: exit 1}\n"), code=100)
    tpux.until_done()
    path = tpux.directory("000001") / "events.jsonl"
    whole = path.read_text()
    for torn in ("{", '{"type": "waiting", "at": 1, "why": "x"}', "\x00", '{"type": "state-changed", "to": "pend'):
        path.write_text(whole + torn)
        assert tpux.show("1")["state"] == "failed"
    tpux("resume", "1")
    tpux("wait", "1", code=100)
    assert path.read_text().startswith(whole + '{"type": "state-changed"')
    (path.parent / "state.json").unlink()
    assert tpux.show("1")["attempt"] == 2


def test_a_corrupt_event_affects_only_its_job(tpux):
    for _ in (1, 2):
        tpux("run", tpux.config(SUCCEEDS))
    tpux.until_done()
    path = tpux.directory("000001") / "events.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    (path.parent / "state.json").unlink()
    for line in (
        '{"no": "type"}\n',
        '{"type": "state-changed"}\n',
        '{"type": "state-changed", "at": 1, "to": "x"}\n',
        "no json\n",
    ):
        path.write_text("".join([lines[0], line, *lines[1:]]))
        listed = tpux("list")
        assert "\n2  " in listed.stdout
        assert "job 1 cannot be read" in listed.stderr
        assert f"{path}:2:" in tpux("show", "1", code=1).stderr
    for command in (["show"], ["logs", "-f"], ["wait"], ["stop"], ["rerun"], ["delete", "-y"]):
        assert "hint" in tpux(*command, "1", code=1).stderr
    tpux("clean", "-y")
    tpux("run", "job.yaml")
    path.write_text("".join(lines))
    assert tpux.show("1")["state"] == "succeeded"


def test_history_leaves_out_a_job_whose_events_cannot_be_read(tpux):
    for _ in (1, 2):
        tpux("run", tpux.config(SUCCEEDS))
    tpux.until_done()
    path = tpux.directory("000001") / "events.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    damaged = "no json".ljust(len(lines[1]) - 1) + "\n"  # of the same length: the state is not computed again
    path.write_text("".join([lines[0], damaged, *lines[2:]]))
    done = tpux("history")
    assert "tpux: warning: job 1 cannot be read: " in done.stderr
    assert str(path) in done.stderr
    assert " 2 job: succeeded\n" in done.stdout
    assert [job["id"] for job in tpux.json("history")["jobs"]] == ["000002"]
    assert str(path) in tpux("history", "1", code=1).stderr


def test_a_job_without_its_config_is_kept_until_it_can_be_released(tpux):
    job = tpux.create(RUNS)
    tpux.until(lambda: tpux.output_so_far(job) == b"up\n")
    tpux("supervisor", "stop")
    resolved = tpux.directory(job) / "resolved.json"
    content = resolved.read_bytes()
    resolved.write_text("{")
    tpux("stop", job, "--no-wait")
    tpux.until(lambda: "resolved.json" in tpux.log())
    assert tpux.show(job)["state"] == "stopping", "a job that may still hold machines is kept"
    resolved.write_bytes(content)
    tpux("wait", job, code=103)


def test_no_id_is_reused_after_the_counter_is_lost(tpux):
    for _ in (1, 2):
        tpux("run", tpux.config(SUCCEEDS))
    (tpux.home / "jobs/.tpux/next_id").write_text("one\n")
    assert tpux.create(SUCCEEDS) == "000003"
    (tpux.home / "jobs/.tpux/next_id").unlink()
    assert tpux.create(SUCCEEDS) == "000004"
    tpux("wait", "3", "4")


def test_a_store_of_a_newer_format_is_refused(tpux):
    tpux("run", tpux.config(SUCCEEDS))
    tpux.until_done()
    identity = tpux.home / "store.json"
    written = json.loads(identity.read_text())
    assert written["format"] == 1
    identity.write_text(json.dumps({**written, "format": 2}))
    for command in (["list"], ["show", "1"], ["create", "job.yaml"], ["stop", "1"], ["supervisor", "status"]):
        refused = tpux(*command, code=1).stderr
        assert f"{identity}: the store has format 2, and this tpux reads format 1 at most" in refused
        assert "pip install -U tpux-core" in refused
    identity.write_text(json.dumps(written))
    tpux("list")


def test_a_store_never_gets_a_new_identity(tpux):
    tpux("run", tpux.config(SUCCEEDS))
    tpux.until_done()
    identity = tpux.home / "store.json"
    written = identity.read_text()
    identity.unlink()
    for content in (None, "", "{", "null", "[]", '{"format": 1}', '{"format": 1, "id": "../x"}', '{"id": 1}'):
        if content is not None:
            identity.write_text(content)
        refused = tpux("create", "job.yaml", code=1).stderr
        assert str(identity) in refused
        assert "restore it from a backup" in refused
        assert content is None or identity.read_text() == content
    identity.write_text(written)
    assert tpux.create(SUCCEEDS) == "000002"
    tpux("wait", "2")


def test_a_supervisor_that_cannot_read_the_store_reports_it(tpux):
    tpux.home.mkdir()
    (tpux.home / "store.json").write_text('{"format": 2, "id": "12345678"}')
    command = [sys.executable, "-m", "tpux.supervisor"]
    done = subprocess.run(command, env=tpux.env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "the store has format 2" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_transition_that_only_a_newer_tpux_knows_asks_for_an_upgrade(tpux):
    tpux("run", tpux.config(SUCCEEDS))
    tpux.until_done()
    path = tpux.directory("000001") / "events.jsonl"
    with path.open("a") as file:
        file.write('{"type": "state-changed", "version": 1, "at": 1, "to": "running"}\n')
    error = tpux("show", "1", code=1).stderr
    assert "a job that is succeeded cannot become running" in error
    assert "if a newer tpux has run this job, upgrade" in error


def test_a_job_that_cannot_be_read_is_logged_once(tpux):
    """Its events are a directory, so that reading them is an OSError; a second job proves that time has passed."""
    tpux("run", tpux.config(SUCCEEDS))
    tpux.until_done()
    events = tpux.directory("000001") / "events.jsonl"
    events.rename(events.with_name("saved"))
    events.mkdir()
    (tpux.directory("000001") / "state.json").unlink()
    job = tpux.create(RUNS)
    tpux.until(lambda: "job 000001: cannot be read" in tpux.log())
    tpux.until(lambda: tpux.output_so_far(job) == b"up\n")
    tpux("stop", job)
    assert tpux.log().count("job 000001: cannot be read") == 1
    events.rmdir()
    events.with_name("saved").rename(events)
    assert tpux.show("1")["state"] == "succeeded"


def test_the_log_of_the_supervisor_rotates(tpux):
    log = tpux.home / f"supervisor/{getpass.getuser()}/log"
    log.parent.mkdir(parents=True)
    log.write_bytes(b"x" * 10_000_001)
    tpux("run", tpux.config(SUCCEEDS))
    assert b"started, process" in log.with_name("log.1").read_bytes()[10_000_000:]
    tpux.until(lambda: "job 000001: done" in log.read_text())
